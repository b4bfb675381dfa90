//! The rule that the commands of this repository exist where a document, a workflow or a recipe names one: steps of
//! `.ci/run`, recipes of the justfile, parts of the tests, benchmarks.

use crate::tree::{File, Tree, Violation};

const RECIPES: &str = "justfile";

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| ["md", "yml"].contains(&file.extension()) || file.path == RECIPES) {
        for (line, command) in commands(file) {
            if let Some(missing) = missing(tree, command) {
                found.push(Violation {
                    path: file.path.clone(),
                    line,
                    rule: "commands",
                    found: format!("`{command}` names `{missing}`, which does not exist"),
                    help: "correct the command, which a reader will type",
                });
            }
        }
    }
    found
}

/// The commands of a file, with the numbers of their lines. In the prose of a document they are between back ticks.
fn commands(file: &File) -> Vec<(usize, &str)> {
    let is_document = file.extension() == "md";
    let (mut found, mut in_block) = (Vec::new(), !is_document);
    for (number, line) in file.text.lines().enumerate() {
        if is_document && line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let quoted = line.split('`').enumerate().filter(|(at, _)| in_block || at % 2 == 1);
        let simple = quoted.flat_map(|(_, text)| text.split(['|', ';', '&', '#']));
        found.extend(simple.map(|text| (number + 1, command(text))));
    }
    found
}

/// Without what a prompt, a workflow and variables put before it.
fn command(text: &str) -> &str {
    let text = ["- ", "run: ", "$ "].iter().fold(text.trim(), |text, before| text.trim_start_matches(before));
    let is_variable = |word: &str| word.split_once('=').is_some_and(|(name, _)| name.to_uppercase() == name);
    match text.split_once(' ') {
        Some((word, rest)) if is_variable(word) => command(rest),
        _ => text,
    }
}

/// The word of a command that names nothing.
fn missing<'a>(tree: &Tree, command: &'a str) -> Option<&'a str> {
    let words: Vec<&str> = command.split_whitespace().take_while(|word| !has_placeholder(word)).collect();
    let is_test = |part: &str| {
        let folder = if part.starts_with("it/") { "tests" } else { "src" };
        tree.has(&format!("{folder}/{part}.rs"))
    };
    let is_bench = |name: &str| has_line(tree, "Cargo.toml", |line| line == format!("name = \"{name}\""));
    let is_step = |step: &str| match step.split_once(':') {
        Some(("tests", part)) => is_test(part),
        Some(("benches", name)) => is_bench(name),
        _ => has_line(tree, ".ci/run", |line| {
            let steps = line.strip_prefix("readonly STEPS=(").or(line.strip_prefix("readonly BY_NAME=("));
            steps.is_some_and(|steps| steps.trim_end_matches(')').split(' ').any(|known| known == step))
        }),
    };
    match words[..] {
        ["bash", ".ci/run", ref steps @ ..] | ["just", "ci", ref steps @ ..] => {
            steps.iter().copied().find(|step| !is_step(step))
        }
        ["just", "test", part, ..] => Some(part).filter(|part| !is_test(part)),
        ["just", "bench", name, ..] | ["cargo", "bench", "--bench", name, ..] => {
            Some(name).filter(|name| !is_bench(name))
        }
        ["just", recipe, ..] => Some(recipe).filter(|recipe| {
            !has_line(tree, RECIPES, |line| line.strip_prefix(recipe).is_some_and(|rest| rest.starts_with([' ', ':'])))
        }),
        ["cargo", "test", "--lib", part, ..] => {
            let module = part.strip_suffix("::").map(|module| module.replace("::", "/"));
            Some(part).filter(|_| module.is_some_and(|module| !is_test(&module)))
        }
        _ => None,
    }
}

/// Whether a reader or a program writes something else there, as for `NAME` and `{{ part }}`.
fn has_placeholder(word: &str) -> bool {
    word.contains(|letter: char| letter.is_uppercase() || "{$<…".contains(letter))
}

fn has_line(tree: &Tree, path: &str, is_it: impl Fn(&str) -> bool) -> bool {
    tree.files.iter().filter(|file| file.path == path).flat_map(|file| file.text.lines()).any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (".ci/run", "readonly STEPS=(lints tests)\nreadonly BY_NAME=(tidy)\n"),
            ("justfile", "test part=\"\":\n    bash .ci/run tests:{{ part }}\nlint:\n"),
            ("Cargo.toml", "[[bench]]\nname = \"compare\"\n"),
            ("src/pool.rs", ""),
            ("tests/it/drain.rs", ""),
            (path, text),
        ]);
        violations(&tree).into_iter().map(|one| format!("{}: {}", one.line, one.found)).collect()
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        for (command, missing) in [
            ("bash .ci/run lints test", "test"),
            ("bash .ci/run tests:poll", "tests:poll"),
            ("bash .ci/run tests:it/pool", "tests:it/pool"),
            ("bash .ci/run benches:compere", "benches:compere"),
            ("just lints", "lints"),
            ("just test it/pool", "it/pool"),
            ("just bench tests", "tests"),
            ("cargo test --lib poll::", "poll::"),
            ("cargo bench --bench compere -- --rounds 5", "compere"),
        ] {
            let fault = [format!("2: `{command}` names `{missing}`, which does not exist")];
            assert_eq!(found("docs/a.md", &format!("\nRun `{command}`.")), fault);
            assert_eq!(found("docs/a.md", &format!("```sh\nA_B=1 {command}\n```")), fault);
            assert_eq!(found(".github/workflows/a.yml", &format!("\n      - run: {command}")), fault);
        }
    }

    #[test]
    fn commands_that_exist_and_other_text_pass() {
        for command in [
            "bash .ci/run",
            "bash .ci/run STEP…",
            "bash .ci/run ${{ matrix.steps }}",
            "just test it/NAME",
            "bash .ci/run lints tidy tests:pool tests:it/drain benches:compare",
            "just test it/drain   # by its name",
            "just lint && just bench compare",
            "cargo test --lib pool::",
            "cargo test --lib a_test_by_its_name",
            "cargo bench --bench compare",
        ] {
            assert_eq!(found("docs/a.md", &format!("```sh\n{command}\n```\njust words")), [""; 0], "{command}");
        }
    }
}
