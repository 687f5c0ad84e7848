// The times since moments, kept up to date.

import { h, setText } from './dom.js';
import { age } from './words.js';

const present = () => Date.now();

/** The time that ages go by, in milliseconds since 1970: a recording has its own. */
export const clock = { now: present };

/** Goes by the present time again. */
export function presentClock() {
  clock.now = present;
}

/**
 * The time since a moment.
 *
 * @param {string | null | undefined} since RFC 3339
 */
export function ago(since) {
  if (!since) return h('span', {}, '–');
  const attributes = { class: 'ago', datetime: since, title: since };
  return h('time', attributes, age(since, clock.now()));
}

/** Brings all ages of the page up to date. */
export function renewAges() {
  const now = clock.now();
  for (const time of document.querySelectorAll(/** @type {'time'} */ ('time.ago'))) {
    setText(time, age(time.dateTime, now));
  }
}
