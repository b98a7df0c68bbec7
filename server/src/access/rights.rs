//! The scopes of a caller, compiled: whether a task type may be touched is one bit, after the first time.

use std::collections::HashMap;

use parking_lot::RwLock;

use super::{Operation, Scope, operation::Operations, scope::Pattern};
use crate::job::TaskTypeName;

/// Task types whose bits are kept. Others are matched each time. Callers choose the names, and there may be thousands of them:
/// this bounds what they make a broker remember.
const KEPT: usize = 256;

/// What a caller may do with each task type.
#[derive(Debug)]
pub struct Rights {
    scopes: Vec<Scope>,
    /// On every task type.
    everywhere: Operations,
    /// On at least one.
    somewhere: Operations,
    /// On task types that were asked for.
    known: RwLock<HashMap<TaskTypeName, Operations>>,
}

impl Rights {
    /// All of them.
    pub fn all() -> Self {
        let scope = |(operation, _)| Scope { operation, pattern: Pattern::Prefix(String::new()) };
        Self::of(Operation::ALL.into_iter().map(scope).collect())
    }

    /// Those of these scopes.
    pub fn of(scopes: Vec<Scope>) -> Self {
        let (mut everywhere, mut somewhere) = (Operations::default(), Operations::default());
        for scope in &scopes {
            somewhere.insert(scope.operation);
            if scope.pattern.is_everything() {
                everywhere.insert(scope.operation);
            }
        }
        Self { scopes, everywhere, somewhere, known: RwLock::default() }
    }

    /// The scopes.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Whether they are for every task type, also for those to come.
    pub fn everywhere(&self, operation: Operation) -> bool {
        self.everywhere.contains(operation)
    }

    /// Whether they are for any task type.
    pub fn somewhere(&self, operation: Operation) -> bool {
        self.somewhere.contains(operation)
    }

    /// Whether they are for this task type. Everything that is asked about one task type is decided here.
    pub fn on(&self, operation: Operation, task_type: &TaskTypeName) -> bool {
        if self.everywhere.contains(operation) {
            return true;
        }
        if !self.somewhere.contains(operation) {
            return false;
        }
        if let Some(known) = self.known.read().get(task_type) {
            return known.contains(operation);
        }
        let mut found = Operations::default();
        for scope in self.scopes.iter().filter(|scope| scope.pattern.matches(task_type.as_str())) {
            found.insert(scope.operation);
        }
        let mut known = self.known.write();
        if known.len() < KEPT {
            known.insert(task_type.clone(), found);
        }
        found.contains(operation)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> TaskTypeName {
        TaskTypeName::parse(text).unwrap()
    }

    #[test]
    fn all_rights_are_everywhere_and_none_nowhere() {
        for (operation, _) in Operation::ALL {
            assert!(Rights::all().everywhere(operation) && Rights::all().on(operation, &name("a")));
            let none = Rights::of(Vec::new());
            assert!(!none.everywhere(operation) && !none.somewhere(operation) && !none.on(operation, &name("a")));
        }
    }

    proptest! {
        /// The bits say what the scopes say, also when they are asked again.
        #[test]
        fn the_bits_are_those_of_the_scopes(
            scopes in prop::collection::vec(("(enqueue|work|read|payload|operate|admin):[ab.]{0,2}\\*?", any::<bool>()), 0..6),
            names in prop::collection::vec("[ab.]{1,3}", 1..6),
        ) {
            let scopes: Vec<Scope> = scopes.iter().filter_map(|(text, _)| Scope::parse(text).ok()).collect();
            let rights = Rights::of(scopes.clone());
            for task_type in names.iter().chain(&names) {
                for (operation, _) in Operation::ALL {
                    let expected = scopes.iter().any(|s| s.operation == operation && s.pattern.matches(task_type));
                    prop_assert_eq!(rights.on(operation, &name(task_type)), expected);
                    prop_assert!(!expected || rights.somewhere(operation));
                }
            }
        }
    }
}
