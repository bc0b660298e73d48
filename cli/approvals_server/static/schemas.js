// A JSON Schema as a form needs it: what kinds of value may stand in a place.
//
// The worker validates. A schema that is not understood here is edited as JSON, and never guessed.

import { canonical } from "./canonical.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {{[name: string]: Json}} Schema */

/**
 * @typedef {"null" | "boolean" | "string" | "integer" | "number" | "enum" | "array" | "object"
 *   | "json"} Kind
 */

/**
 * One kind of value that a schema allows.
 *
 * @typedef {object} Alternative
 * @property {Kind} kind
 * @property {Schema} schema without references
 */

/** References and alternatives inside one another, before a schema counts as not understood. */
const DEEPEST = 20;
const SCALARS = ["null", "boolean", "string", "integer", "number"];

/**
 * Return the kinds of value that a schema allows.
 *
 * @param {Json | undefined} schema
 * @param {Schema} root what its references lead into
 * @param {number} [depth]
 * @returns {Alternative[]}
 */
export function alternatives(schema, root, depth = 0) {
  if (!isObject(schema) || depth > DEEPEST) {
    return [{ kind: "json", schema: {} }];
  }
  if (typeof schema.$ref === "string") {
    const { $ref, ...beside } = schema;
    const found = referred($ref, root);
    return alternatives(isObject(found) ? { ...found, ...beside } : undefined, root, depth + 1);
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1 && isObject(schema.allOf[0])) {
    const { allOf, ...beside } = schema;
    return alternatives({ ...schema.allOf[0], ...beside }, root, depth + 1);
  }
  const choices = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(choices)) {
    return withoutSpellings(choices.flatMap((one) => alternatives(one, root, depth + 1)));
  }
  if (Array.isArray(schema.type)) {
    return schema.type.flatMap((type) => alternatives({ ...schema, type }, root, depth + 1));
  }
  return [{ kind: kindOf(schema), schema }];
}

/**
 * Return whether a value is of an alternative's kind; its limits are not looked at.
 *
 * @param {Alternative} alternative
 * @param {Json} value
 * @param {Schema} root
 * @param {boolean} deep whether what is inside has to fit as well: to tell objects apart
 * @returns {boolean}
 */
export function fits({ kind, schema }, value, root, deep) {
  switch (kind) {
    case "null":
      return value === null;
    case "integer":
      return Number.isSafeInteger(value);
    case "enum":
      return choicesOf(schema).some((one) => canonical(one) === canonical(value));
    case "array":
      return (
        Array.isArray(value) && (!deep || value.every((one) => fitsOne(schema.items, one, root)))
      );
    case "object":
      return (
        isObject(value) && hasNeeded(schema, value) && (!deep || hasFitting(schema, value, root))
      );
    case "json":
      return isOfType(value, schema.type);
    default:
      return typeof value === kind;
  }
}

/**
 * Return the values that a schema lists.
 *
 * @param {Schema} schema of kind `enum`
 * @returns {Json[]}
 */
export function choicesOf(schema) {
  return Array.isArray(schema.enum) ? schema.enum : [schema.const ?? null];
}

/**
 * Return an object's members with their schemas, in the schema's order.
 *
 * @param {Schema} schema of kind `object`
 * @returns {[string, Json, boolean][]} name, schema, and whether it has to be there
 */
export function membersOf(schema) {
  const required = Array.isArray(schema.required) ? schema.required : [];
  const properties = isObject(schema.properties) ? schema.properties : {};
  return Object.entries(properties).map(([name, one]) => [name, one, required.includes(name)]);
}

/**
 * @param {Json | undefined} value
 * @returns {value is {[name: string]: Json}}
 */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Return whether a value that is edited as JSON is the list or the object that a schema wants.
 *
 * @param {Json} value
 * @param {Json | undefined} type
 */
export function isOfType(value, type) {
  return (type !== "object" || isObject(value)) && (type !== "array" || Array.isArray(value));
}

/**
 * A decimal may be a number or text: the value at hand says which, and nobody is asked.
 *
 * @param {Alternative[]} found
 * @returns {Alternative[]} text first: it keeps each digit
 */
function withoutSpellings(found) {
  const [text, number] = ["string", "number"].map((kind) => found.find((one) => one.kind === kind));
  if (text === undefined || number === undefined || found.length !== 2) {
    return found;
  }
  return [{ kind: "string", schema: { ...text.schema, spelling: true } }, number];
}

function kindOf(schema) {
  if (Array.isArray(schema.enum) || schema.const !== undefined) {
    return "enum";
  }
  if (SCALARS.includes(String(schema.type))) {
    return schema.type;
  }
  if (schema.type === "array" && isObject(schema.items) && schema.prefixItems === undefined) {
    return "array";
  }
  const named = isObject(schema.properties) && schema.patternProperties === undefined;
  return schema.type === "object" && named && schema.allOf === undefined ? "object" : "json";
}

function referred(reference, root) {
  if (!reference.startsWith("#")) {
    return undefined;
  }
  let found = root;
  for (const part of reference.split("/").slice(1)) {
    const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return found;
}

function fitsOne(schema, value, root) {
  return alternatives(schema, root).some((one) => fits(one, value, root, true));
}

function hasNeeded(schema, value) {
  return membersOf(schema).every(([name, , needed]) => !needed || Object.hasOwn(value, name));
}

function hasFitting(schema, value, root) {
  const members = membersOf(schema);
  const known = members.map(([name]) => name);
  return (
    members.every(
      ([name, one]) => !Object.hasOwn(value, name) || fitsOne(one, value[name] ?? null, root),
    ) &&
    (schema.additionalProperties !== false ||
      Object.keys(value).every((name) => known.includes(name)))
  );
}
