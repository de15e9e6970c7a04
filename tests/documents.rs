//! What the documentation says of the tests.

use std::fs;
use std::path::Path;

/// A test that a document names, `module::test` or `module::part::test`, is there.
#[test]
fn tests_that_are_named_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for document in ["docs/transparency.md", "docs/limits.md"] {
        let text = fs::read_to_string(root.join(document)).expect("it is there");
        for name in text
            .split('`')
            .filter(|part| !part.contains(char::is_whitespace))
        {
            let Some((module, test)) = name.rsplit_once("::") else {
                continue;
            };
            let file = root
                .join("tests")
                .join(module.replace("::", "/"))
                .with_extension("rs");
            let Ok(tests) = fs::read_to_string(file) else {
                panic!("{document}: there are no tests of {name}");
            };
            // Written as a function, or a line of a table of programs.
            let is_there = [
                format!("fn {test}("),
                format!("{test}: "),
                format!("    {test}\n"),
            ];
            assert!(
                is_there.iter().any(|form| tests.contains(form)),
                "{document}: {name} is not there"
            );
            named += 1;
        }
    }
    assert!(named > 60, "{named}");
}
