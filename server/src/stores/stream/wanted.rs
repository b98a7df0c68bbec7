//! The windows that a worker wants, and which engine gets which: each engine those of the types that its store has. A type that
//! no store has is created at its home.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Home;
use crate::{job::TaskTypeName, session::WindowArgs};

/// The windows of a stream.
pub(super) struct Wanted {
    windows: Mutex<HashMap<TaskTypeName, Entry>>,
    /// A bit for each engine.
    all: u64,
    home: Home,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

struct Entry {
    args: WindowArgs,
    version: u64,
    /// Engines whose stores do not have the type.
    missing: u64,
}

/// What an engine has got.
#[derive(Default)]
pub(super) struct Given {
    types: HashSet<TaskTypeName>,
    version: u64,
}

/// What an engine gets next.
pub(super) struct News {
    /// Windows of types that it has, which have changed.
    pub(super) windows: Vec<WindowArgs>,
    /// Types of which it does not know whether its store has them.
    pub(super) unknown: Vec<TaskTypeName>,
}

impl Wanted {
    pub(super) fn new(windows: &[WindowArgs], engines: usize, home: Home) -> Self {
        let entry = |args: &WindowArgs| Entry { args: args.clone(), version: 1, missing: 0 };
        let windows = windows.iter().map(|args| (args.task_type.clone(), entry(args))).collect();
        let all = if engines >= super::MOST_ENGINES { u64::MAX } else { (1 << engines) - 1 };
        Self { windows: Mutex::new(windows), all, home, changed: watch::Sender::new(1) }
    }

    /// Signals changes.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// How many types there would be with this one.
    pub(super) fn types_with(&self, task_type: &TaskTypeName) -> usize {
        let windows = self.windows.lock();
        windows.len() + usize::from(!windows.contains_key(task_type))
    }

    /// Opens, resizes or closes a window.
    pub(super) fn set(&self, args: WindowArgs) {
        self.changed.send_modify(|version| {
            *version += 1;
            let mut windows = self.windows.lock();
            let missing = windows.get(&args.task_type).map_or(0, |entry| entry.missing);
            windows.insert(args.task_type.clone(), Entry { args, version: *version, missing });
        });
    }

    /// What has changed for an engine since it was given windows last.
    pub(super) fn news(&self, given: &mut Given) -> News {
        let version = *self.changed.borrow();
        let windows = self.windows.lock();
        let known = |name: &TaskTypeName| given.types.contains(name);
        let changed = windows.values().filter(|entry| known(&entry.args.task_type) && entry.version > given.version);
        let news = News {
            windows: changed.map(|entry| entry.args.clone()).collect(),
            unknown: windows.keys().filter(|name| !known(name)).cloned().collect(),
        };
        given.version = version;
        news
    }

    /// Which of these types, of which the engine has found some, it gets now; and those of them that it has to create.
    pub(super) fn found(
        &self,
        engine: usize,
        given: &mut Given,
        asked: &[TaskTypeName],
        found: impl Fn(&TaskTypeName) -> bool,
    ) -> (Vec<WindowArgs>, Vec<TaskTypeName>) {
        let (mut gets, mut creates, mut is_news) = (Vec::new(), Vec::new(), false);
        let mut windows = self.windows.lock();
        for name in asked {
            let Some(entry) = windows.get_mut(name) else { continue };
            let is_found = found(name);
            if !is_found {
                let before = entry.missing;
                entry.missing |= 1 << engine;
                // Its home learns that nobody else has it.
                is_news |= before != self.all && entry.missing == self.all;
            }
            let is_created = !is_found && entry.missing == self.all && (self.home)(name) == engine;
            if is_found || is_created {
                given.types.insert(name.clone());
                gets.push(entry.args.clone());
            }
            if is_created {
                creates.push(name.clone());
            }
        }
        drop(windows);
        if is_news {
            self.changed.send_modify(|version| *version += 1);
        }
        (gets, creates)
    }

    /// Types that the engine has no window of.
    pub(super) fn missing(&self, given: &Given) -> Vec<TaskTypeName> {
        self.windows.lock().keys().filter(|name| !given.types.contains(*name)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn name(text: &str) -> TaskTypeName {
        TaskTypeName::parse(text).unwrap()
    }

    fn window(text: &str, jobs: usize) -> WindowArgs {
        WindowArgs { task_type: name(text), jobs, bytes: 1 }
    }

    #[test]
    fn an_engine_gets_the_types_that_its_store_has_and_one_that_nobody_has_is_created_at_home() {
        let wanted = Wanted::new(&[window("a", 1), window("new", 1)], 2, Arc::new(|_| 1));
        let (mut first, mut second) = (Given::default(), Given::default());
        let asked = wanted.news(&mut first).unknown;
        let (gets, creates) = wanted.found(0, &mut first, &asked, |name| name.as_str() == "a");
        assert_eq!(gets.iter().map(|args| args.task_type.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(creates.is_empty());
        let (gets, creates) = wanted.found(1, &mut second, &asked, |_| false);
        assert_eq!((gets.len(), creates), (1, vec![name("new")]));
        assert_eq!((wanted.missing(&first), wanted.missing(&second)), (vec![name("new")], vec![name("a")]));
    }

    #[test]
    fn a_home_that_has_answered_first_is_told_that_nobody_else_has_the_type() {
        let wanted = Wanted::new(&[window("new", 1)], 2, Arc::new(|_| 0));
        let (mut home, mut other) = (Given::default(), Given::default());
        assert!(wanted.found(0, &mut home, &[name("new")], |_| false).1.is_empty());
        let mut watch = wanted.watch();
        watch.mark_unchanged();
        assert!(wanted.found(1, &mut other, &[name("new")], |_| false).1.is_empty());
        assert!(watch.has_changed().unwrap());
        let asked = wanted.news(&mut home).unknown;
        assert_eq!(wanted.found(0, &mut home, &asked, |_| false).1, [name("new")]);
    }

    #[test]
    fn an_engine_is_told_of_a_change_once() {
        let wanted = Wanted::new(&[window("a", 1)], 2, Arc::new(|_| 0));
        let mut given = Given::default();
        let asked = wanted.news(&mut given).unknown;
        wanted.found(0, &mut given, &asked, |_| true);
        assert!(wanted.news(&mut given).windows.is_empty());
        wanted.set(window("a", 7));
        assert_eq!(wanted.news(&mut given).windows.iter().map(|args| args.jobs).collect::<Vec<_>>(), [7]);
        assert!(wanted.news(&mut given).windows.is_empty());
        assert_eq!((wanted.types_with(&name("a")), wanted.types_with(&name("b"))), (1, 2));
    }
}
