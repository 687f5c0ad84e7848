// The form for a token, and the one-time token of a listener in the fragment.

/** @import { Api } from './api.js' */
/** @import { Session } from '../types/contract.js' */

import { h, replace } from './dom.js';
import { errorBox } from './messages.js';

/**
 * Exchanges the one-time token of the fragment, and takes it from the address bar.
 *
 * @param {Api} api
 */
export async function exchangeFragment(api) {
  const values = new URLSearchParams(location.hash.slice(1));
  const token = values.get('token') ?? '';
  const to = values.get('to') ?? '';
  history.replaceState(null, '', to.startsWith('#/') ? to : '#/');
  // Only a listener has one-time tokens.
  if ((await api.server()).source !== 'apiserver') await api.exchange(token);
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
