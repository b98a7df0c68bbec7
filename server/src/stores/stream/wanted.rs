//! The windows that a worker has requested, and their distribution to stores: each store gets the windows of the task
//! types that it has. A type that no store has is created in its home store.

use std::collections::{HashMap, HashSet};

use howdah_core::job::TaskTypeName;
use howdah_engine::session::WindowArgs;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Home;

/// Windows that a worker has requested on its stream, each with the stores that lack its task type.
pub(super) struct Wanted {
    windows: Mutex<HashMap<TaskTypeName, Entry>>,
    /// Bit mask of all stores of the stream.
    all: u64,
    home: Home,
    /// Version of the windows. Increases with each change, and notifies the stores.
    changed: watch::Sender<u64>,
}

struct Entry {
    args: WindowArgs,
    version: u64,
    /// Bit mask of the stores that have answered that they do not have the task type.
    missing: u64,
}

/// Windows that one store has received: their task types, and the version up to which changes were sent.
#[derive(Default)]
pub(super) struct Given {
    types: HashSet<TaskTypeName>,
    version: u64,
}

/// Changes of windows that one store has not received yet.
pub(super) struct News {
    /// Changed windows of task types that the store has.
    pub(super) windows: Vec<WindowArgs>,
    /// Task types of which it is unknown whether the store has them.
    pub(super) unknown: Vec<TaskTypeName>,
}

impl Wanted {
    pub(super) fn new(windows: &[WindowArgs], stores: usize, home: Home) -> Self {
        let entry = |args: &WindowArgs| Entry { args: args.clone(), version: 1, missing: 0 };
        let windows = windows.iter().map(|args| (args.task_type.clone(), entry(args))).collect();
        let all = if stores >= super::MOST_STORES { u64::MAX } else { (1 << stores) - 1 };
        Self { windows: Mutex::new(windows), all, home, changed: watch::Sender::new(1) }
    }

    /// Returns a receiver that is notified of each change of the windows.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the number of task types that the stream would have with `task_type`.
    pub(super) fn types_with(&self, task_type: &TaskTypeName) -> usize {
        let windows = self.windows.lock();
        windows.len() + usize::from(!windows.contains_key(task_type))
    }

    /// Applies the worker's request to open, resize or close a window.
    pub(super) fn set(&self, args: WindowArgs) {
        self.changed.send_modify(|version| {
            *version += 1;
            let mut windows = self.windows.lock();
            let missing = windows.get(&args.task_type).map_or(0, |entry| entry.missing);
            windows.insert(args.task_type.clone(), Entry { args, version: *version, missing });
        });
    }

    /// Returns the changes for a store since the last call with the same `given`, and updates `given`.
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

    /// Records which of the task types `asked` a store has. Returns the windows for the store, and the types that the
    /// store must create: those that no store has and whose home is this store.
    pub(super) fn found(
        &self,
        store_no: usize,
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
                entry.missing |= 1 << store_no;
                // All stores have now answered that they lack the type. Notifies the home store, which then asks again
                // and creates the type.
                is_news |= before != self.all && entry.missing == self.all;
            }
            let is_created = !is_found && entry.missing == self.all && (self.home)(name) == store_no;
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

    /// Returns the subscribed task types of which the store has not received a window.
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
    fn each_store_gets_its_task_types_and_a_type_of_no_store_is_created_at_its_home() {
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
    fn a_store_learns_of_a_changed_window_once() {
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
