// The form for a token, and at a listener its one-time token in the fragment.

/** @import { Api } from './api.js' */
/** @import { PageServer, Session } from '../types/contract.js' */

import { h, replace } from './dom.js';
import { errorBox } from './messages.js';

/** The address of a listener begins so, with the token and the view that it opens. */
const TOKEN = '#token=';

export function hasToken() {
  return location.hash.startsWith(TOKEN);
}

/**
 * Takes the one-time token from the address bar.
 *
 * @returns {string | null} null if the address has none
 */
export function takeToken() {
  if (!hasToken()) return null;
  const values = new URLSearchParams(location.hash.slice(1));
  const to = values.get('to') ?? '';
  history.replaceState(null, '', to.startsWith('#/') ? to : '#/');
  return values.get('token');
}

/**
 * What to do at a listener, which takes one-time tokens alone.
 *
 * @param {PageServer['source']} source
 * @param {string} reason why there is no session, or nothing
 */
export function loginNote(source, reason) {
  const command = source === 'recording' ? 'podplane replay DIR --ui' : 'podplane ui';
  return h(
    'section',
    { class: 'login panel' },
    h('h1', { tabindex: '-1' }, 'Log in'),
    reason ? errorBox(reason) : null,
    h('p', {}, 'Open the last address that the command printed. It can be used once.'),
    h(
      'p',
      {},
      'If it was used, press “Log out” on the page where it is open: the command prints another one. Or run the command again:',
    ),
    h('pre', { tabindex: '0' }, h('code', {}, command)),
  );
}

/**
 * @param {Api} api
 * @param {string} reason why there is no session, or nothing
 * @param {(session: Session) => Promise<void>} onSession
 */
export function loginForm(api, reason, onSession) {
  const problem = h('div', {}, reason ? errorBox(reason) : null);
  const input = h('input', {
    id: 'token',
    type: 'password',
    autocomplete: 'off',
    spellcheck: 'false',
    required: true,
    'aria-describedby': 'token-note',
  });
  const submit = h('button', { type: 'submit', class: 'primary' }, 'Log in');
  const form = h(
    'form',
    { class: 'login panel' },
    h('h1', { tabindex: '-1' }, 'Log in'),
    problem,
    h('label', { for: 'token' }, 'Bearer token'),
    h('div', { class: 'controls' }, input, submit),
    h(
      'p',
      { id: 'token-note', class: 'quiet' },
      'The token stays in the memory of this page: a reload forgets it. One for a ServiceAccount:',
    ),
    h('pre', { tabindex: '0' }, h('code', {}, 'kubectl create token NAME')),
    h('p', { class: 'quiet' }, 'Without a token, with the rights of your kubeconfig:'),
    h('pre', { tabindex: '0' }, h('code', {}, 'podplane ui')),
    h(
      'p',
      { class: 'quiet' },
      'It prints an address that logs in once, and opens a browser if there is one.',
    ),
  );
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const session = await api.logIn(input.value.trim());
      input.value = '';
      await onSession(session);
    } catch (error) {
      replace(problem, errorBox(error));
      input.focus();
    } finally {
      submit.disabled = false;
    }
  });
  return form;
}
