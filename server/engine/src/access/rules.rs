use super::Operation;

/// Permission that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The caller needs the operation on each task type that the request names, directly or through jobs; the call
    /// checks each of them. A caller without the operation on any task type is refused before the request is read.
    Types(Operation),
    /// Like `Types`, with one of two operations.
    TypesEither(Operation, Operation),
    /// The caller needs the operation on every task type.
    Everything(Operation),
    /// A valid credential is enough.
    Anyone,
}
