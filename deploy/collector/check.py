"""Compares a collector's output with docs/operate/tracing.md: `check.py SPANS TRACEPARENT`, with the traceparent of the order job."""

import collections
import json
import sys

ERROR = 2
# Trace id of the jobs in test.sh whose producer has no spans.
TRACE = "0af7651916cd43dd8448eb211c80319c"
# Order of spans that have the same parent. Timestamps do not give the order, because they come from two programs and a
# database.
STEPS = ("create", "send", "wait", "attempt", "process", "nack", "ack")


def read(path):
    """The spans of each trace, with their attributes as a dictionary."""
    traces = collections.defaultdict(list)
    for line in open(path, encoding="utf-8"):
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    traces[span["traceId"]].append(span | {"attributes": attributes(span)})
    return traces


def attributes(of):
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


def below(spans, parent):
    """The descendants of a span, one per line: name, outcome and error, indented by depth."""
    children = [span for span in spans if span.get("parentSpanId", "") == parent]
    children.sort(key=lambda span: (span["attributes"].get("howdah.attempt", ""), STEPS.index(span["name"].split()[0])))
    for span in children:
        words = [span["name"]] + [span["attributes"].get(name, "") for name in ("howdah.outcome", "error.type")]
        if span["status"].get("code") == ERROR:
            words.append(f"error: {span['status']['message']}")
        yield " ".join(filter(None, words))
        yield from (f"  {line}" for line in below(spans, span["spanId"]))


def compare(what, spans, parent, wanted):
    got = list(below(spans, parent))
    if got != wanted:
        sys.exit("\n".join([f"FAILED: {what}: the collector has", *got, "in place of", *wanted]))
    print(f"{what}: as documented")


def main(path, order):
    traces = read(path)
    given = traces.pop(TRACE, [])
    compare("a job with a traceparent", given, "b7ad6b7169203331", ["wait greet", "attempt greet ack"])
    failed = "attempt spoil dead dead error: sour (exit status 1)"
    compare("a job that fails", given, "b7ad6b7169203332", ["wait spoil", failed])
    compare("a job that its producer does not sample", given, "b7ad6b7169203333", [])
    compare(
        "a job that fails once, with the spans of its producer and its worker",
        traces.pop(order.split("-")[1], []),
        "",
        [
            "send order",
            "  wait order",
            "  attempt order retry retry error: out of stock",
            "  process order retry error: out of stock",
            "    nack order",
            "  wait order",
            "  attempt order ack",
            "  process order",
            "    ack order",
        ],
    )
    ((_, plain),) = traces.items()
    compare("a job without a traceparent", plain, "", ["create plain", "  wait plain", "  attempt plain ack"])


main(*sys.argv[1:])
