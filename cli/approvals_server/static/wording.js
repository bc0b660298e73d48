// What the page's scripts say to people, all of it.

/** @typedef {string | number} Told */

export const WORDING = Object.freeze({
  notSecure: "This page cannot sign here: open it by https, or on localhost.",
  noEd25519:
    "This browser cannot make Ed25519 keys: use Chrome 137, Firefox 129, Safari 17, or newer.",
  noPasskeys: "This browser has no passkeys.",
  keyThere: "There is a key for this name in this browser already: forget it first.",
  noOwner: "a key needs the tenant and the name of its owner",
  noPasskeyKnown: "No passkey of yours is registered.",
  noPasskeyChosen: "No passkey was chosen.",
  otherPasskey: "The browser has signed with a passkey that is not on record.",
  passkeyKind: "This passkey is neither ES256 nor EdDSA, or the browser does not show its key.",
  listLength: (most) =>
    `One gesture signs 1 to ${most} decisions, each of them once.`,
  otherParams:
    "The params that are shown are not those that are asked for: their hash is another one.",
  otherTenant: "This approval belongs to another tenant.",
  noApprovalId: "This is not the id of an approval.",
  unchanged: "The params are so already.",
  notCanonical: (why) => `this value has no exact JSON form: ${why}`,
  lostDigits:
    "numbers from 2^53, or of more digits than a double has, lose digits; write them in quotes",
  half: "a text has half of a character",
  notJson: (place) => `this is not JSON, from character ${place} on`,
  twice: (name) => `the name ${JSON.stringify(name)} stands there twice`,
  tooDeep: "lists and objects are nested too deeply",
  form: {
    choice: (name) => `${name}: what it is`,
    absent: "left out",
    null: "nothing (null)",
    string: "text",
    integer: "whole number",
    number: "number",
    boolean: "yes or no",
    array: "list",
    object: "object",
    enum: "one of a list",
    json: "JSON",
    asJson: "Written as JSON.",
    further: "further members",
    add: (name) => `Add to ${name}`,
    remove: (name) => `Remove ${name}`,
    problem: {
      choose: "Choose one.",
      integer: "Write a whole number, with digits only.",
      number: "Write a number such as 12 or 12.5.",
      half: "This text has half of a character.",
      otherType: "This is JSON of another kind than is asked for.",
      pattern: (pattern) => `It has to have the form ${pattern}`,
      limits: {
        minimum: (limit) => `At least ${limit}.`,
        maximum: (limit) => `At most ${limit}.`,
        exclusiveMinimum: (limit) => `More than ${limit}.`,
        exclusiveMaximum: (limit) => `Less than ${limit}.`,
        minLength: (limit) => `At least ${limit} characters.`,
        maxLength: (limit) => `At most ${limit} characters.`,
        minItems: (limit) => `At least ${limit} items.`,
        maxItems: (limit) => `At most ${limit} items.`,
      },
    },
  },
  differences: {
    added: "added",
    removed: "removed",
    changed: "changed",
    none: "No difference.",
    whole: "all of it",
  },
});
