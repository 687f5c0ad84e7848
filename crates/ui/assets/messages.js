// Errors of the server, and texts where there is nothing to show.

import { h } from './dom.js';

/** @param {unknown} error */
export function errorBox(error) {
  const text = error instanceof Error ? error.message : String(error);
  return h('p', { class: 'error', role: 'alert' }, text);
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
