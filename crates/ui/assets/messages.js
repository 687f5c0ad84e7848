// Errors of the server, and texts where there is nothing to show.

import { h } from './dom.js';
import { similar } from './similar.js';

/** @param {unknown} error */
export function errorBox(error) {
  const text = error instanceof Error ? error.message : String(error);
  return h('p', { class: 'error', role: 'alert' }, text);
}

/**
 * An error of an object that does not exist, with the way back to others.
 *
 * @param {HTMLElement} problem
 * @param {string} name
 * @param {Iterable<string>} names of the others, as far as they are known
 * @param {(name: string) => string} link of one
 * @param {HTMLElement} list leads to all of them
 */
export function absent(problem, name, names, link, list) {
  const links = similar(name, names).map((other) =>
    h('li', {}, h('a', { href: link(other) }, other)),
  );
  return h(
    'div',
    {},
    problem,
    links.length > 0 && h('p', {}, 'Similar names:'),
    links.length > 0 && h('ul', {}, ...links),
    h('p', {}, list),
  );
}

/**
 * A text that says what to do, with commands.
 *
 * @param {string} text
 * @param {...string} commands
 */
export function hint(text, ...commands) {
  return h(
    'div',
    { class: 'hint' },
    h('p', {}, text),
    commands.length > 0 && h('pre', { tabindex: '0' }, h('code', {}, commands.join('\n'))),
  );
}
