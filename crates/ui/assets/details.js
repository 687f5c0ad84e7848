// What the pointer or the keyboard is at, beside a map.

/** @import { AddressPage, Cell, Finding } from '../types/contract.js' */
/** @import { Api } from './api.js' */
/** @import { Scene } from './scene.js' */

import { addressesPath, holderList } from './addresses.js';
import { isAbort } from './api.js';
import { definitions, h, isChanged, replace } from './dom.js';
import { nodeLinks, nodesOf } from './nodes.js';
import { STATES, inUse, stateLabel } from './states.js';
import { countOf, number } from './words.js';

/** The time that a cell is looked at before its holders are asked for, in milliseconds. */
const PATIENCE = 120;
/** The holders that are shown. */
const MOST = 5;

export class CellDetails {
  element = h('div', { class: 'cell-details', 'aria-live': 'polite' });
  #holders = h('div', {});
  #api;
  #end;
  /** @type {number | undefined} */ #timer;
  #request = new AbortController();
  #prefix = '';

  /**
   * @param {Api} api
   * @param {AbortSignal} end
   */
  constructor(api, end) {
    this.#api = api;
    this.#end = end;
    this.#nothing();
    end.addEventListener('abort', () => this.#stop(), { once: true });
  }

  /**
   * @param {Scene} scene
   * @param {Cell | null} cell
   * @param {Finding[]} findings
   */
  show(scene, cell, findings) {
    if (!cell) {
      this.#prefix = '';
      this.#stop();
      this.#nothing();
      return;
    }
    const block = scene.blockOf(cell);
    if (!isChanged(this.element, [cell, block, findings])) return;
    const present = STATES.filter(({ name }) => countOf(cell.counts, name) > 0);
    const counts = present.map(({ name }) =>
      h('li', {}, stateLabel(name), ' ', number(cell.counts[name])),
    );
    const words = block ? [block.cidr, block.state, block.details].filter(Boolean) : [];
    const ofBlock = words.join(', ');
    const names = block ? nodesOf(block) : [];
    if (cell.prefix !== this.#prefix) replace(this.#holders);
    replace(
      this.element,
      h('p', { class: 'cell-prefix code' }, cell.prefix.replace(/\/(32|128)$/, '')),
      h('ul', { class: 'counts' }, ...counts),
      definitions([
        ['Block', ofBlock],
        [names.length > 1 ? 'Nodes' : 'Node', names.length > 0 && nodeLinks(names)],
        ['Blocks inside', cell.blocksInside > 0 ? number(cell.blocksInside) : null],
      ]),
      this.#holders,
      ...findings.map(({ message, severity }) => h('p', { class: `finding ${severity}` }, message)),
    );
    this.#prefix = cell.prefix;
    this.#stop();
    if (inUse(cell.counts) > 0) this.#timer = setTimeout(() => this.#ask(cell.prefix), PATIENCE);
    else replace(this.#holders);
  }

  #nothing() {
    if (!isChanged(this.element, null)) return;
    const text = 'Point at the map, or focus it and move with the arrow keys.';
    replace(this.element, h('p', { class: 'quiet' }, text));
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#request.abort();
  }

  /** @param {string} prefix */
  async #ask(prefix) {
    this.#request = new AbortController();
    const { signal } = this.#request;
    try {
      /** @type {AddressPage} */
      const page = await this.#api.json(addressesPath(prefix, MOST), signal);
      if (this.#end.aborted || signal.aborted) return;
      const items = page.items.map(({ ip, holders }) =>
        h('li', {}, h('span', { class: 'code' }, ip), ' ', holderList(holders)),
      );
      replace(this.#holders, h('ul', { class: 'holders' }, ...items), !!page.continue && '…');
    } catch (error) {
      if (!isAbort(error)) replace(this.#holders);
    }
  }
}
