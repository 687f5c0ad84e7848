// The addresses of a prefix as a table, read page by page.

/** @import { Address, AddressPage } from '../types/contract.js' */
/** @import { Api } from './api.js' */

import { isAbort } from './api.js';
import { button, h, replace } from './dom.js';
import { errorBox } from './messages.js';
import { go, nodeLink, podLink } from './route.js';
import { stateLabel } from './states.js';
import { DataTable } from './table.js';

const PAGE = 500;

/**
 * @param {string} prefix
 * @param {number} limit
 * @param {string} [from]
 */
export function addressesPath(prefix, limit, from) {
  const query = new URLSearchParams({ prefix, limit: String(limit) });
  if (from) query.set('continue', from);
  return `/summary/v1alpha1/addresses?${query}`;
}

/**
 * The holders of an address, with links where there is a view.
 *
 * @param {Address['holders']} holders
 */
export function holderList(holders) {
  const parts = holders.map((holder) => {
    const { kind, name, node } = holder;
    const href = holderLink(holder);
    return h(
      'span',
      { class: 'holder' },
      `${kind} `,
      href ? h('a', { href }, name) : name,
      node && kind !== 'node' && ' on ',
      node && kind !== 'node' && h('a', { href: nodeLink(node) }, node),
    );
  });
  return h('span', {}, ...parts);
}

/**
 * Goes to the view of the holder of an address, if it has exactly one with a view.
 *
 * @param {Api} api
 * @param {string} prefix
 * @param {AbortSignal} end
 */
export async function openHolder(api, prefix, end) {
  try {
    /** @type {AddressPage} */
    const { items } = await api.json(addressesPath(prefix, 2), end);
    const links = items
      .flatMap(({ holders }) => holders.map(holderLink))
      .filter((one) => one !== null);
    if (links.length === 1 && links[0]) go(links[0]);
  } catch {
    // The details beside the map show the address as it is.
  }
}

/** @param {Address['holders'][number]} holder */
function holderLink({ kind, name }) {
  if ((kind === 'pod' || kind === 'sandbox') && name.includes('/')) return podLink(name);
  return kind === 'node' || kind === 'gateway' ? nodeLink(name) : null;
}

/** @param {string} caption */
export function addressTable(caption) {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<Address>} */ ({
      caption,
      columns: [
        { title: 'Address', value: (row) => row.ip, isCode: true },
        { title: 'State', value: (row) => row.state, show: (row) => stateLabel(row.state) },
        {
          title: 'Holders',
          value: (row) => row.holders.map(({ name }) => name).join(' '),
          show: (row) => holderList(row.holders),
        },
      ],
      key: (row) => row.ip,
      empty: 'No address has a state of its own here.',
      filter: {
        label: 'Filter addresses',
        text: ({ ip, state, holders }) =>
          [ip, state, ...holders.flatMap(({ name, node }) => [name, node ?? ''])].join(' '),
      },
    }),
  );
}

/** The table of a prefix. Only the pages that were asked for are held. */
export class PrefixAddresses {
  element;
  #api;
  #prefix;
  #end;
  #table;
  #more = h('p', {});
  #problem = h('div', {});
  /** @type {(string | undefined)[]} */ #starts = [undefined];
  /** @type {string | undefined} */ #next;

  /**
   * @param {Api} api
   * @param {string} prefix
   * @param {AbortSignal} end
   */
  constructor(api, prefix, end) {
    this.#api = api;
    this.#prefix = prefix;
    this.#end = end;
    this.#table = addressTable(`Addresses of ${prefix}`);
    this.element = h('div', {}, this.#problem, this.#table.element, this.#more);
  }

  /**
   * Marks the row of an address.
   *
   * @param {string} ip
   */
  mark(ip) {
    this.#table.mark(ip);
  }

  async read() {
    const path = addressesPath(this.#prefix, PAGE, this.#starts.at(-1));
    try {
      /** @type {AddressPage} */
      const page = await this.#api.json(path, this.#end);
      this.#next = page.continue ?? undefined;
      replace(this.#problem);
      this.#table.update(page.items);
      this.#turns();
    } catch (error) {
      if (!isAbort(error)) replace(this.#problem, errorBox(error));
    }
  }

  #turns() {
    const back = () => {
      this.#starts.pop();
      void this.read();
    };
    const on = () => {
      this.#starts.push(this.#next);
      void this.read();
    };
    replace(
      this.#more,
      this.#starts.length > 1 && button('Previous addresses', back),
      !!this.#next && button('More addresses', on),
    );
  }
}
