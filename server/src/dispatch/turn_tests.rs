//! Windows that several engines deal to.
