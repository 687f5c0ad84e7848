// The states of addresses, as crates/map has them; their colours are in style.css.

/** @import { Counts, StateName } from '../types/contract.js' */

import { h } from './dom.js';
import { countOf, number } from './words.js';

/**
 * @typedef {object} AddressState
 * @property {StateName} name
 * @property {string} letter
 * @property {string} meaning
 * @property {boolean} isInUse
 */

/** All states, the most urgent first. @type {AddressState[]} */
export const STATES = [
  { name: 'duplicate', letter: 'D', meaning: 'has several holders', isInUse: true },
  { name: 'outside', letter: 'X', meaning: 'of a pod, outside its block', isInUse: true },
  { name: 'orphaned', letter: 'O', meaning: 'allocated, without owner', isInUse: true },
  { name: 'draining', letter: '~', meaning: 'in use in a former block', isInUse: true },
  { name: 'pod', letter: 'p', meaning: 'of a pod', isInUse: true },
  { name: 'service', letter: 's', meaning: 'of a Service', isInUse: true },
  { name: 'node', letter: 'n', meaning: 'of a node', isInUse: true },
  { name: 'withheld', letter: '-', meaning: 'unused in a former block', isInUse: false },
  { name: 'reserved', letter: 'r', meaning: 'not for pods', isInUse: false },
  { name: 'gateway', letter: 'g', meaning: "of a block's bridge", isInUse: false },
  { name: 'free', letter: '.', meaning: 'can be given', isInUse: false },
  { name: 'unassigned', letter: ' ', meaning: 'in no block', isInUse: false },
];

/** @type {Map<StateName, AddressState>} */
const BY_NAME = new Map(STATES.map((state) => [state.name, state]));

/** @param {StateName} name */
export function letterOf(name) {
  return BY_NAME.get(name)?.letter ?? '?';
}

/** @param {Counts} counts */
export function inUse(counts) {
  let sum = 0;
  for (const state of STATES) if (state.isInUse) sum += countOf(counts, state.name);
  return sum;
}

/**
 * The addresses of blocks that pods can have.
 *
 * @param {Counts} counts
 * @returns {number}
 */
export function usableIn(counts) {
  /** @type {StateName[]} */
  const others = ['unassigned', 'reserved', 'gateway'];
  let sum = 0;
  for (const { name } of STATES) if (!others.includes(name)) sum += countOf(counts, name);
  return sum;
}

/**
 * The most frequent state without a holder; with equal numbers the more urgent one. A block is
 * visible in a /8, too.
 *
 * @param {Counts} counts
 * @returns {StateName}
 */
export function background(counts) {
  /** @type {StateName} */
  let most = 'unassigned';
  let count = 0;
  for (const state of STATES) {
    if (state.isInUse || state.name === 'unassigned') continue;
    if (countOf(counts, state.name) > count) {
      most = state.name;
      count = countOf(counts, state.name);
    }
  }
  return most;
}

/** @param {StateName} name */
export function swatch(name) {
  const attributes = { class: `swatch s-${name}`, 'aria-hidden': 'true' };
  return h('span', attributes, letterOf(name).replace(' ', '\u00a0'));
}

/**
 * A state with its sign.
 *
 * @param {StateName} name
 */
export function stateLabel(name) {
  return h('span', { class: 'state' }, swatch(name), name);
}

/**
 * The states that occur, each with its sign, number and meaning.
 *
 * @param {Counts} counts
 */
export function legend(counts) {
  const rows = STATES.filter(({ name }) => countOf(counts, name) > 0).map(({ name, meaning }) =>
    h(
      'tr',
      {},
      h('th', { scope: 'row' }, stateLabel(name)),
      h('td', { class: 'numeric' }, number(counts[name])),
      h('td', { class: 'quiet' }, meaning),
    ),
  );
  const titles = h(
    'tr',
    {},
    h('th', { scope: 'col' }, 'State'),
    h('th', { scope: 'col', class: 'numeric' }, 'Addresses'),
    h('th', { scope: 'col' }, 'Meaning'),
  );
  return h('table', { class: 'legend' }, h('thead', {}, titles), h('tbody', {}, ...rows));
}
