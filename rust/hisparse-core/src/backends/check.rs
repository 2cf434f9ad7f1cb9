//! Whether a named backend may be used, and if not, why and what may.

use super::{Backend, Situation, TABLE, use_one_of};
use crate::error::Problem;
use crate::input::nearest;
use crate::platform::KvDtype;

/// Every backend that may be used in `here`, in the table's order.
pub fn allowed(here: &Situation) -> Vec<Backend> {
    TABLE.iter().filter(|row| row.accepts(here)).map(|row| row.backend).collect()
}

/// The backend called `name`, if it may be used in `here`.
///
/// # Errors
/// A problem that says which conditions it breaks and lists all that would be accepted.
pub fn check(name: &str, here: &Situation) -> Result<Backend, Problem> {
    let refuse = |rule: String, hint: &str| {
        Err(Problem::new(here.phase.flag(), name, rule, format!("{}{hint}", what_instead(here))))
    };
    let Ok(backend) = name.parse::<Backend>() else {
        let hint = nearest(name, Backend::NAMES).map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
        return refuse("is not a backend that can read host-backed rows".to_owned(), &hint);
    };
    let Some(row) = TABLE.iter().find(|row| row.backend == backend && row.platform == here.platform) else {
        return refuse(format!("{backend} does not run on {}", here.platform), "");
    };
    let objections = row.objections(here);
    if objections.is_empty() { Ok(backend) } else { refuse(format!("{backend} {}", objections.join(", and ")), "") }
}

/// The remedy: all backends accepted here, or what has to change before any is.
fn what_instead(here: &Situation) -> String {
    let accepted = allowed(here);
    if !accepted.is_empty() {
        return use_one_of(&accepted);
    }
    let dtypes: Vec<_> = KvDtype::ALL
        .iter()
        .filter(|dtype| **dtype != KvDtype::Float32) // for tests, and nobody's remedy
        .filter(|dtype| !allowed(&Situation { kv_dtype: **dtype, ..*here }).is_empty())
        .map(|dtype| dtype.name())
        .collect();
    if dtypes.is_empty() {
        "no backend reads this family's rows; leave it out".to_owned()
    } else {
        format!("no backend on {} reads {} rows; use --kv-dtype {}", here.platform, here.kv_dtype, dtypes.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::Phase;
    use crate::model::Family;
    use crate::platform::Platform;

    const HERE: Situation = Situation {
        platform: Platform::Cuda,
        sm: 90,
        kv_dtype: KvDtype::Fp8E4m3,
        family: Some(Family::DeepseekV32),
        phase: Phase::Decode,
        heads: Some(256),
        index_pooling: 1,
    };

    #[test]
    fn a_refusal_says_every_reason_and_lists_all_that_would_be_accepted() {
        let problem = check("flashinfer_sparse_mla", &HERE).unwrap_err();
        assert_eq!(
            problem.to_string(),
            "--decode-backend is flashinfer_sparse_mla: flashinfer_sparse_mla runs on SM120 to SM121 only, and is for \
             GLM alone, and takes 8, 16, 32, 64, 128 heads a rank, not 256; use one of triton, reference"
        );
    }

    #[test]
    fn an_unknown_name_gets_its_neighbour_and_the_list() {
        let problem = check("flashmla_kw", &Situation { heads: None, ..HERE }).unwrap_err();
        assert_eq!(problem.remedy, "use one of flashmla_kv, triton, reference (did you mean flashmla_kv?)");
    }

    #[test]
    fn where_nothing_reads_the_rows_the_remedy_is_another_kv_type() {
        let problem = check("triton", &Situation { kv_dtype: KvDtype::Fp8Raw, ..HERE }).unwrap_err();
        assert_eq!(problem.remedy, "no backend on cuda reads fp8_raw rows; use --kv-dtype bfloat16 or fp8_e4m3");
    }
}
