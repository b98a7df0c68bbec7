//! The TypeScript client: the types of the options.

use super::{Field, Types, lines, rows, word};

const TYPES: Types = &[
    ("int32", "number", ""),
    ("uint32", "number", ""),
    ("double", "number", ""),
    ("int64", "bigint", ""),
    ("enum", "Name<typeof proto.ENUM>", ""),
    ("Timestamp", "Date", ""),
    ("RetryPolicy", "RetryPolicyOptions", ""),
    ("map", "{ [name: string]: string }", ""),
    ("[string]", "string[]", ""),
    ("[int64]", "bigint[]", ""),
    ("[Duration]", "Duration[]", ""),
];

const MODULE: &str = r#"/** Options of a job. */
import type { Duration } from "./duration.js";
import type * as proto from "./gen/index.js";

/** The value names of an enum of the protocol in lower case, such as `replace_if_newer`. */
export type Name<E> = Exclude<Lowercase<keyof E & string>, "unspecified">;

/**
 * Options of a job. The client checks their names and types. If the broker refuses one, its error names the field and
 * its bounds.
 */
export interface JobOptions {
OPTIONS}

/** The delays between attempts; see `RetryPolicy` of the protocol. */
export interface RetryPolicyOptions {
POLICY}

/** @internal Bounds that are checked without a broker: name, kind, least, most, options of which it needs one. */
export const BOUNDS: readonly (readonly [string, string, number, number, readonly string[]])[] = [
ROWS];
"#;

pub(super) fn options() -> String {
    let properties = |fields: Vec<Field>| fields.iter().map(property).collect::<String>();
    let module = MODULE.replace("OPTIONS", &properties(super::options(&[])));
    let module = module.replace("POLICY", &properties(super::retry_policy()));
    module.replace("ROWS", &rows("  [NAME, KIND, LEAST, MOST, [NEEDS]],\n"))
}

fn property(field: &Field) -> String {
    let (kind, _) = field.typed(TYPES, "");
    let comment = field.comment(|choices, value| format!("`{}`", word(choices, value)));
    let comment = lines("   * ", "   * ", &comment);
    format!("  /**\n{comment}   */\n  {}?: {kind};\n", field.camel())
}
