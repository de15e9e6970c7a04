use std::fs::File;

use darc_symbols::DebugSearch;
use darc_testprogs::{Opt, program};

use super::*;

fn image(name: &str) -> Image {
    let path = program(name, Opt::O2);
    Image::open(File::open(&path).unwrap(), &path, &DebugSearch::nowhere()).unwrap()
}

fn query(pattern: &str) -> Query {
    Query {
        pattern: Some(Pattern::new(pattern)),
        order: Order::Name,
        copies: Copies::LeftOut,
    }
}

#[test]
fn functions_have_size_and_source() {
    let image = image("btree");
    let listing = list(&[&image], &query("main"));
    let main = listing
        .functions
        .iter()
        .find(|entry| entry.name == "main")
        .unwrap();
    assert!(main.size > Some(0));
    assert!(
        main.file
            .as_deref()
            .is_some_and(|file| file.ends_with("btree.c"))
    );
    assert!(main.line > Some(1));
}

#[test]
fn the_order_is_the_one_that_was_asked_for() {
    let image = image("names");
    let by = |order| {
        let mut query = query("*");
        query.order = order;
        list(&[&image], &query).functions
    };
    assert!(by(Order::Name).is_sorted_by_key(|entry| entry.name.clone()));
    assert!(by(Order::Size).is_sorted_by_key(|entry| std::cmp::Reverse(entry.size)));
    assert_eq!(by(Order::Address).len(), by(Order::Name).len());
}

#[test]
fn too_many_functions_have_no_copies_and_it_is_said() {
    let image = image("names");
    let mut query = query("*");
    query.copies = Copies::Listed;
    let listing = list(&[&image], &query);
    assert!(
        listing.warnings[0].contains("narrow the pattern"),
        "{:?}",
        listing.warnings
    );
}

#[test]
fn copies_of_a_function_whose_name_is_a_part_of_another_are_listed() {
    // part_all exists and is inlined too; part is inlined only.
    let source = "volatile int sink;\n\
        static inline __attribute__((always_inline)) void part(int x) { sink = x; }\n\
        void part_all(int x) { sink = x + 1; }\n\
        int main(int argc, char **argv) { (void)argv; part(argc); part_all(argc); return 0; }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.c"), source).unwrap();
    let built = std::process::Command::new("cc")
        .args(["-g", "-O2", "-o", "a", "a.c"])
        .current_dir(folder.path())
        .status();
    assert!(built.unwrap().success());
    let path = folder.path().join("a");
    let image = Image::open(File::open(&path).unwrap(), &path, &DebugSearch::nowhere()).unwrap();
    let mut query = query("part");
    query.copies = Copies::Listed;
    let listing = list(&[&image], &query);
    let all = listing
        .functions
        .iter()
        .find(|entry| entry.name == "part_all");
    assert!(
        all.is_some_and(|all| !all.inlined.is_empty()),
        "{listing:#?}"
    );
    let part: Vec<&Entry> = listing
        .functions
        .iter()
        .filter(|entry| entry.name == "part")
        .collect();
    assert_eq!(part.len(), 1, "{listing:#?}");
    assert_eq!(part[0].note, Some(Note::InlinedOnly));
    assert_eq!(part[0].inlined[0].caller, "main");
}

#[test]
fn a_hostile_name_stays_in_its_column() {
    let listing = Listing {
        schema: 1,
        functions: vec![Entry {
            name: "a\tb\n\x1b[2J".to_owned(),
            symbol: None,
            module: "/lib/x\n".to_owned(),
            address: None,
            size: None,
            file: Some("c\td".to_owned()),
            line: Some(3),
            note: Some(Note::NoSymbol),
            inlined: vec![Copy {
                caller: "e\nf".to_owned(),
                file: None,
                line: None,
            }],
        }],
        warnings: Vec::new(),
    };
    let text = render(&listing, Reader::Program);
    assert_eq!(
        text,
        "-\tx\\n\ta\\tb\\n\\u{1b}[2J\tc\\td:3 (no symbol)\n\tx\\n\t  inlined into e\\nf\n"
    );
    assert_eq!(render(&listing, Reader::Person).lines().count(), 3);
}
