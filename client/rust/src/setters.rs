//! A macro for the methods of builders.

/// Defines methods that set one field each: `name(argument: Type) => field = value;`.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),+) => $($field:tt).+ = $value:expr;)+) => {
        $(
            $(#[$meta])*
            pub fn $name(mut self, $($argument: $type),+) -> Self {
                self.$($field).+ = $value;
                self
            }
        )+
    };
}
pub(crate) use setters;
