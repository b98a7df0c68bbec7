import tseslint from "typescript-eslint";

// What a command of the conformance suite has is only known at run time.
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
    // node:test awaits what it is given.
    files: ["test/**/*.ts"],
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
);
