//! The Java client: the superclass of the builder of a job.

use super::{Field, Types, lines, rows};

/// `header` takes one header, and `trace` takes both values of a W3C trace context.
const BY_HAND: [&str; 3] = ["headers", "traceparent", "tracestate"];

const TYPES: Types = &[
    ("string", "String", "$"),
    ("int32", "int", "$"),
    ("uint32", "int", "$"),
    ("int64", "long", "$"),
    ("enum", "ENUM", "$"),
    ("Duration", "Duration", "NewJob.wire($)"),
    ("Timestamp", "Instant", "NewJob.wire($)"),
    ("[string]", "List<String>", "$"),
    ("[int64]", "List<Long>", "$"),
];

const CLASS: &str = "package dev.howdah.client;

IMPORTSimport java.time.Duration;
import java.time.Instant;
import java.util.List;

/**
 * Options of a job.
 *
 * @param <B> builder of the job
 */
abstract class JobOptions<B> {
    /** Bounds of the options that are checked without a broker. */
    static final List<JobRules.Bound> BOUNDS = List.of(
ROWS);

    final dev.howdah.v1.NewJob.Builder job;

    JobOptions(dev.howdah.v1.NewJob.Builder job) {
        this.job = job;
    }

    abstract B with(dev.howdah.v1.NewJob.Builder same);
METHODS}
";

pub(super) fn options() -> String {
    let fields = super::options(&BY_HAND);
    let mut types: Vec<String> = fields.iter().map(Field::choices).filter(|name| !name.is_empty()).collect();
    types.push("RetryPolicy".into());
    types.sort();
    let imports = format!("import dev.howdah.v1.{};\n", types.join(";\nimport dev.howdah.v1."));
    let rows = rows("        new JobRules.Bound(NAME, KIND, LEASTL, MOSTL, List.of(NEEDS)),\n");
    let methods = fields.iter().map(method).collect::<String>();
    CLASS.replace("IMPORTS", &imports).replace("ROWS", rows.trim_end_matches(",\n")).replace("METHODS", &methods)
}

fn method(field: &Field) -> String {
    let (name, camel) = (field.pascal(), field.camel());
    let (kind, value) = field.typed(TYPES, camel);
    let set = if field.0.is_list() { format!("clear{name}().addAll{name}") } else { format!("set{name}") };
    let comment = field.comment(|choices, value| format!("{{@link {choices}#{value}}}"));
    let part = |(i, part)| if i % 2 == 1 { format!("{{@code {part}}}") } else { String::from(part) };
    let comment: String = comment.split('`').enumerate().map(part).collect();
    let comment = lines(&format!("     * @param {camel} "), "     *     ", &comment);
    format!(
        "\n    /**\n     * {{@return this}}\n     *\n{comment}     */\n\
         \x20   public B {camel}({kind} {camel}) {{ return with(job.{set}({value})); }}\n"
    )
}
