//! Scopes of a caller, compiled for fast checks. After the first check of a task type, its allowed operations are cached as one
//! bit each.

use std::collections::HashMap;

use howdah_core::job::TaskTypeName;
use parking_lot::RwLock;

use super::{
    Operation, Scope,
    scope::{Operations, Pattern},
};

/// Maximum number of task types whose rights are cached. Task types beyond the limit are matched against the scopes at each
/// check. Callers choose the names, so the limit bounds the memory that callers can make a broker use.
const KEPT: usize = 256;

/// The operations that a caller may perform on each task type.
#[derive(Debug)]
pub struct Rights {
    scopes: Vec<Scope>,
    /// Operations allowed on every task type.
    everywhere: Operations,
    /// Operations allowed on at least one task type.
    somewhere: Operations,
    /// Cache of the allowed operations, by task type.
    known: RwLock<HashMap<TaskTypeName, Operations>>,
}

impl Rights {
    /// Returns all rights on all task types.
    pub fn all() -> Self {
        let scope = |(operation, _)| Scope { operation, pattern: Pattern::Prefix(String::new()) };
        Self::new(Operation::ALL.into_iter().map(scope).collect())
    }

    pub fn new(scopes: Vec<Scope>) -> Self {
        let (mut everywhere, mut somewhere) = (Operations::default(), Operations::default());
        for scope in &scopes {
            somewhere.insert(scope.operation);
            if scope.pattern.is_everything() {
                everywhere.insert(scope.operation);
            }
        }
        Self { scopes, everywhere, somewhere, known: RwLock::default() }
    }

    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Whether the operation is allowed on every task type, including future ones.
    pub fn everywhere(&self, operation: Operation) -> bool {
        self.everywhere.contains(operation)
    }

    /// Whether the operation is allowed on at least one task type.
    pub fn somewhere(&self, operation: Operation) -> bool {
        self.somewhere.contains(operation)
    }

    /// Whether the operation is allowed on this task type. All permission checks for a single task type call this function.
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
            let none = Rights::new(Vec::new());
            assert!(!none.everywhere(operation) && !none.somewhere(operation) && !none.on(operation, &name("a")));
        }
    }

    proptest! {
        /// The allowed operations agree with the scopes, both at the first check and from the cache.
        #[test]
        fn the_allowed_operations_are_those_of_the_scopes(
            scopes in prop::collection::vec(("(enqueue|work|read|payload|operate|admin):[ab.]{0,2}\\*?", any::<bool>()), 0..6),
            names in prop::collection::vec("[ab.]{1,3}", 1..6),
        ) {
            let scopes: Vec<Scope> = scopes.iter().filter_map(|(text, _)| Scope::parse(text).ok()).collect();
            let rights = Rights::new(scopes.clone());
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
