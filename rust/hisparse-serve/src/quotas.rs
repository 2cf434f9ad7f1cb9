//! Tenants as settings name them.
//!
//! ```text
//!  search: seats = 4..16, host_pages = ..5000        a floor that is kept for it, a ceiling that it may not pass
//!  *:      seats = ..8                               each tenant that is not named
//! ```
//! A tenant's name is what callers write into `Admit`, so bounds that must hold for anybody are those of `*`.

use std::collections::BTreeMap;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::ledger::{Amounts, Pool, TenantPolicy};

/// Stands for each tenant that is not named.
const OTHERS: &str = "*";

/// One tenant's part of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSetting {
    /// The tenant, or `*`.
    pub tenant: String,
    /// Name of the pool.
    pub pool: String,
    /// Kept for it at all times, in the pool's unit.
    pub floor: u64,
    /// Most it may hold; `None` for no bound but the pool.
    pub ceiling: Option<u64>,
}

/// What tenants may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Of those that are named.
    pub tenants: BTreeMap<String, TenantPolicy>,
    /// The ceiling of each other one.
    pub others: Amounts,
}

impl Default for Quotas {
    /// Anybody may hold anything.
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), others: Amounts::UNBOUNDED }
    }
}

impl Quotas {
    /// Puts settings together.
    ///
    /// # Errors
    /// Every pool that there is none of, is named twice for a tenant, or has a floor where none can be kept.
    pub fn of(settings: &[QuotaSetting]) -> Result<Self, Problems> {
        let (mut quotas, mut problems, mut seen) = (Self::default(), Problems::new(), Vec::new());
        for setting in settings {
            let QuotaSetting { tenant, pool: name, floor, ceiling } = setting;
            let pool = match name.parse::<Pool>() {
                Ok(pool) => pool,
                Err(problem) => {
                    problems.push(Problem { field: format!("tenants.{tenant}"), ..problem });
                    continue;
                }
            };
            let field = format!("tenants.{tenant}.{pool}");
            if seen.contains(&(tenant, pool)) {
                problems.push(Problem::new(
                    field,
                    "given twice",
                    "must be given once for a tenant",
                    "keep one of them",
                ));
                continue;
            }
            seen.push((tenant, pool));
            if tenant == OTHERS {
                if *floor > 0 {
                    let rule = "cannot be kept for tenants that are not named";
                    problems.push(Problem::new(field, floor, rule, "give a ceiling alone, as ..8"));
                }
                quotas.others[pool] = ceiling.unwrap_or(u64::MAX);
            } else {
                let policy = quotas.tenants.entry(tenant.clone()).or_default();
                policy.floor[pool] = *floor;
                policy.ceiling[pool] = ceiling.unwrap_or(u64::MAX);
            }
        }
        problems.into_result(quotas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(tenant: &str, pool: &str, floor: u64, ceiling: Option<u64>) -> QuotaSetting {
        QuotaSetting { tenant: tenant.into(), pool: pool.into(), floor, ceiling }
    }

    #[test]
    fn pools_of_one_tenant_come_together_and_a_star_is_everybody_else() {
        let settings = [
            setting("a", "seats", 4, Some(16)),
            setting("a", "host_pages", 0, Some(50)),
            setting("*", "seats", 0, Some(8)),
        ];
        let quotas = Quotas::of(&settings).unwrap();
        let policy = quotas.tenants["a"];
        assert_eq!((policy.floor[Pool::Seats], policy.ceiling[Pool::Seats]), (4, 16));
        assert_eq!((policy.ceiling[Pool::HostPages], policy.ceiling[Pool::IndexerTokens]), (50, u64::MAX));
        assert_eq!((quotas.others[Pool::Seats], quotas.others[Pool::HostPages]), (8, u64::MAX));
    }

    #[test]
    fn everything_wrong_is_named_together() {
        let settings = [
            setting("a", "chairs", 4, None),
            setting("a", "seats", 1, None),
            setting("a", "seats", 2, None),
            setting("*", "seats", 1, None),
        ];
        let problems = Quotas::of(&settings).unwrap_err();
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["tenants.a", "tenants.a.seats", "tenants.*.seats"]);
    }
}
