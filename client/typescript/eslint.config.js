import tseslint from "typescript-eslint";

// The adapter may use untyped values, because the fields of a conformance command are only known at run time.
const untyped = ["argument", "assignment", "call", "member-access", "return"];

export default tseslint.config(
  { ignores: ["dist/", "src/gen/", "target/"] },
  {
    files: ["src/**/*.ts", "test/**/*.ts", "conformance/**/*.ts"],
    extends: tseslint.configs.recommendedTypeChecked,
    languageOptions: { parserOptions: { project: ["tsconfig.json", "tsconfig.test.json"] } },
    rules: {
      "@typescript-eslint/require-await": "off",
    },
  },
  {
    files: ["conformance/**/*.ts"],
    rules: {
      "@typescript-eslint/no-explicit-any": "off",
      ...Object.fromEntries(untyped.map((name) => [`@typescript-eslint/no-unsafe-${name}`, "off"])),
    },
  },
  {
    // A call of test() need not be awaited, because node:test awaits the promises of tests.
    files: ["test/**/*.ts"],
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
);
