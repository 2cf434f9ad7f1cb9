//! The page's files, in this binary.

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($kind:expr, $name:literal) => {
        (concat!("/page/", $name), $kind, include_str!(concat!("../../page/", $name)))
    };
}

/// Path, kind and content.
const FILES: [(&str, &str, &str); 16] = [
    ("/", HTML, include_str!("../../page/index.html")),
    file!(SVG, "icon.svg"),
    file!(CSS, "base.css"),
    file!(CSS, "parts.css"),
    file!(JS, "app.js"),
    file!(JS, "stream.js"),
    file!(JS, "dom.js"),
    file!(JS, "format.js"),
    file!(JS, "status.js"),
    file!(JS, "fits.js"),
    file!(JS, "pools.js"),
    file!(JS, "seats.js"),
    file!(JS, "map.js"),
    file!(JS, "leases.js"),
    file!(JS, "admits.js"),
    file!(JS, "swap.js"),
];

/// Kind and content of the file at this path.
pub(super) fn find(path: &str) -> Option<(&'static str, &'static str)> {
    FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, content)| (*kind, *content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served_and_every_import_and_link_is_there() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name == "index.html" || find(&format!("/page/{name}")).is_some(), "{name} is not served");
        }
        for (path, kind, content) in FILES {
            let quoted = content.split('"').filter(|text| text.starts_with("page/") || text.starts_with("./"));
            for named in quoted.filter(|text| *text != "page/events") {
                let wanted = format!("/page/{}", named.trim_start_matches("page/").trim_start_matches("./"));
                assert!(find(&wanted).is_some(), "{path} names {named}");
            }
            let foreign = content.contains("https:") || content.replace("http://www.w3.org/", "").contains("http:");
            assert!(!foreign, "{path} ({kind}) names another place");
        }
    }
}
