//! Parses the code blocks of a documentation page.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

/// The language of a code block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Shell,
    Sql,
    Other,
}

/// A block of code.
#[derive(Debug)]
pub(super) struct Block {
    /// Line number of the block's first line in the page.
    pub(super) line: usize,
    pub(super) language: Language,
    /// Whether the test runs the block.
    pub(super) run: bool,
    /// Whether the block shows a terminal: commands after a prompt, with output between them.
    console: bool,
    text: String,
}

/// A command and the output that the page shows for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    pub(super) shown: String,
}

/// Returns the code blocks of a page, in order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        // A code block inside a list is indented.
        let indent = line.len() - line.trim_start().len();
        let (info, end) = match line.trim() {
            "<!-- run" => ("sh", "-->"),
            fence if fence.starts_with("```") => (&fence[3..], "```"),
            _ => continue,
        };
        let inside = lines.by_ref().take_while(|(_, line)| line.trim() != end);
        let inside = inside.map(|(_, line)| format!("{}\n", line.get(indent..).unwrap_or_default()));
        let mut words = info.split_whitespace();
        let name = words.next().unwrap_or_default();
        blocks.push(Block {
            line: number + 1,
            language: match name {
                "sh" | "console" => Language::Shell,
                "sql" => Language::Sql,
                _ => Language::Other,
            },
            run: !words.any(|word| word == "no-run"),
            console: name == "console",
            text: inside.collect(),
        });
    }
    blocks
}

impl Block {
    /// Returns the commands of the block. A block of SQL is one command.
    pub(super) fn steps(&self) -> Vec<Step> {
        if self.language != Language::Shell {
            return vec![Step { command: self.text.clone(), shown: String::new() }];
        }
        let mut steps = Vec::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            let first = if self.console { line.strip_prefix("$ ") } else { Some(line) };
            match (first, steps.last_mut()) {
                (Some(first), _) if !first.trim().is_empty() => {
                    let mut command = format!("{first}\n");
                    while !is_whole(&command) {
                        command.push_str(lines.next().expect("the end of a command"));
                        command.push('\n');
                    }
                    steps.push(Step { command, shown: String::new() });
                }
                (None, Some(Step { shown, .. })) => {
                    shown.push_str(line);
                    shown.push('\n');
                }
                _ => {}
            }
        }
        steps
    }

    /// Whether any command of the block satisfies `such`.
    pub(super) fn has(&self, such: fn(&str) -> bool) -> bool {
        self.run && self.language == Language::Shell && self.steps().iter().any(|step| such(&step.command))
    }
}

/// Whether bash can parse the command without waiting for another line.
fn is_whole(command: &str) -> bool {
    if command.trim_end_matches('\n').ends_with('\\') {
        return false;
    }
    let mut bash = Command::new("bash");
    bash.arg("-n").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut bash = bash.spawn().expect("bash");
    bash.stdin.take().expect("stdin").write_all(command.as_bytes()).expect("write");
    let output = bash.wait_with_output().expect("bash");
    // For an unfinished here-document, bash exits successfully and only prints a warning.
    output.status.success() && output.stderr.is_empty()
}

#[test]
fn commands_go_on_over_lines_and_output_stands_between_them() {
    let page =
        "text\n```console\n$ cat <<'END'\n$ 1\nEND\n$ 1\n$ echo \\\n  'a\n b'\na\n b\n```\n```sh no-run\nx\n```\n";
    let blocks = blocks(page);
    let step = |command: &str, shown: &str| Step { command: command.into(), shown: shown.into() };
    let steps = [step("cat <<'END'\n$ 1\nEND\n", ""), step("1\n", ""), step("echo \\\n  'a\n b'\n", "a\n b\n")];
    assert_eq!(blocks[0].steps(), steps);
    assert_eq!((blocks[0].line, blocks[0].run, blocks[1].run), (2, true, false));
}
