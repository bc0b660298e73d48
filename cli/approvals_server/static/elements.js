// Makes the elements that scripts draw.

/**
 * Return a new element.
 *
 * @param {string} name
 * @param {{[property: string]: any}} properties of the element
 * @param {...(string | Node)} inside texts are ours; a stranger's is a node that `shown` makes
 */
export function made(name, properties, ...inside) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
}
