// Elements. Texts of the server become text nodes, never markup.

/** @typedef {Node | string | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */

/**
 * Creates an element.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} [attributes] `true` is an attribute without value; `false`, null and
 *   undefined are left out.
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) parent.append(child);
  }
}

/**
 * Replaces all children.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export function replace(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/**
 * Sets a text unless it is there already, so that selections and screen readers are not disturbed.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** What elements were made of. @type {WeakMap<Element, string>} */
const contents = new WeakMap();

/**
 * Returns true if an element has to be made anew: elements that stay keep the focus, and clicks on
 * them are not lost.
 *
 * @param {Element} element
 * @param {unknown} content what it is made of, as JSON has it
 */
export function isChanged(element, content) {
  const text = JSON.stringify(content);
  if (contents.get(element) === text) return false;
  contents.set(element, text);
  return true;
}

/**
 * @param {string} text
 * @param {() => void} onClick
 * @param {Attributes} [attributes]
 */
export function button(text, onClick, attributes = {}) {
  const element = h('button', { type: 'button', ...attributes }, text);
  element.addEventListener('click', onClick);
  return element;
}

/**
 * A definition list of the pairs that have a value.
 *
 * @param {[string, Child][]} pairs
 */
export function definitions(pairs) {
  const present = pairs.filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  );
  const parts = present.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)));
  return h('dl', { class: 'facts' }, ...parts);
}

/** True on a screen on which most parts of a view are below each other. */
export function isSmallScreen() {
  return matchMedia('(max-width: 560px)').matches;
}

/**
 * A section that is closed on a small screen until its heading is clicked.
 *
 * @param {string} title
 * @param {...Child} children
 */
export function foldedSection(title, ...children) {
  const summary = h('summary', {}, h('h2', {}, title));
  return h('details', { class: 'panel', open: !isSmallScreen() }, summary, ...children);
}

/**
 * A section with a heading.
 *
 * @param {string} title
 * @param {...Child} children
 */
export function section(title, ...children) {
  return h('section', { class: 'panel' }, h('h2', {}, title), ...children);
}
