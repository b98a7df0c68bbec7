/** Durations. */
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { wrong } from "./calls.js";

/** A duration: milliseconds, or a text such as `250ms`, `5m`, `1h30m` or `3 days`. */
export type Duration = number | string;

const UNITS: readonly [RegExp, number][] = [
  [/^(ms|milliseconds?)$/, 1],
  [/^(s|secs?|seconds?)$/, 1_000],
  [/^(m|mins?|minutes?)$/, 60_000],
  [/^(h|hrs?|hours?)$/, 3_600_000],
  [/^(d|days?)$/, 86_400_000],
  [/^(w|weeks?)$/, 604_800_000],
];

/** @internal Converts a duration to milliseconds. The error for any other value names the field. */
export function milliseconds(value: Duration, field: string): number {
  const ms = typeof value === "string" ? parsed(value) : value;
  if (typeof ms === "number" && Number.isFinite(ms)) return ms;
  throw wrong(
    field,
    value,
    'write a duration as milliseconds, or as a text such as "250ms", "5m", "1h30m" or "3 days"',
  );
}

function parsed(text: string): number {
  if (!/^(\s*\d+(\.\d+)?\s*[a-z]+\s*)+$/.test(text)) return NaN;
  const parts = text.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g);
  return Array.from(parts, ([, count, name = ""]) => Number(count) * unit(name)).reduce((sum, ms) => sum + ms);
}

const unit = (name: string) => UNITS.find(([names]) => names.test(name))?.[1] ?? NaN;

/** @internal */
export const duration = (value: Duration | undefined, field: string) =>
  value === undefined ? undefined : durationFromMs(Math.round(milliseconds(value, field)));
