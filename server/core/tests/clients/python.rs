//! The Python client: the types of the keyword arguments.

use super::{Field, Types, lines, rows, word};

const TYPES: Types = &[
    ("string", "str", ""),
    ("enum", "str", ""),
    ("int32", "int", ""),
    ("uint32", "int", ""),
    ("int64", "int", ""),
    ("double", "float", ""),
    ("Duration", "Seconds", ""),
    ("Timestamp", "datetime", ""),
    ("map", "Mapping[str, str]", ""),
    ("[string]", "Sequence[str]", ""),
    ("[int64]", "Sequence[int]", ""),
    ("[Duration]", "Sequence[Seconds]", ""),
];

const MODULE: &str = r#""""Options of a job."""

from __future__ import annotations

from datetime import datetime
from typing import List, Mapping, Sequence, Tuple, TypedDict

from .messages import Seconds


class RetryPolicy(TypedDict, total=False):
    """The delay between a failed attempt and the next one. Missing fields take the task type's settings."""

POLICY

class JobOptions(TypedDict, total=False):
    """Options of a job, named as in the protocol. Times are `datetime`.

    Durations are seconds, a `timedelta`, or a text such as ``5m``, ``1h30m`` or ``3 days``.
    """

OPTIONS

#: Bounds of the options that are checked without a broker: name, kind, least, most, options of which it needs one.
BOUNDS: Sequence[Tuple[str, str, int, int, List[str]]] = (
ROWS)
"#;

pub(super) fn options() -> String {
    let attributes = |fields: Vec<Field>| fields.iter().map(attribute).collect::<String>();
    let module = MODULE.replace("POLICY", &attributes(super::retry_policy()));
    let module = module.replace("OPTIONS", &attributes(super::options(&[])));
    module.replace("ROWS", &rows("    (NAME, KIND, LEAST, MOST, [NEEDS]),\n"))
}

fn attribute(field: &Field) -> String {
    let (kind, _) = field.typed(TYPES, "");
    let mut comment = field.comment(|choices, value| format!("`{}`", word(choices, value))).replace('`', "``");
    if !field.words().is_empty() {
        comment = format!("{comment} One of ``{}``.", field.words().join("``, ``"));
    }
    lines("    #: ", "    #: ", &comment) + &format!("    {}: {kind}\n", field.name())
}
