//! Checks that the pages of `tests/mission` have a section with commands for each row.

use std::fs;

use super::{
    markdown::{Language, blocks},
    root,
};

/// The pages of each group, and the number of its rows.
const GROUPS: [(char, &[&str], usize); 4] =
    [('Q', &["q"], 14), ('T', &["t"], 14), ('D', &["d", "d-archive"], 9), ('S', &["s"], 17)];

#[test]
fn each_row_of_the_mission_is_shown_by_commands() {
    for (group, pages, rows) in GROUPS {
        let text: String = pages
            .iter()
            .map(|page| fs::read_to_string(root().join(format!("tests/mission/{page}.md"))).expect("a page"))
            .collect();
        let sections: Vec<&str> = text.split("\n## ").skip(1).collect();
        assert_eq!(sections.len(), rows, "sections of group {group}");
        for row in 1..=rows {
            let heading = format!("{group}{row}. ");
            let section = sections.iter().find(|section| section.starts_with(&heading)).expect(&heading);
            let runs = blocks(section).iter().any(|block| block.run && block.language != Language::Other);
            assert!(runs, "{heading} has no command");
        }
    }
}
