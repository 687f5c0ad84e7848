// A prefix of a network: its map, the legend, and the addresses as a table.

/** @import { Network } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */
/** @import { Scene } from './scene.js' */

import { PrefixAddresses } from './addresses.js';
import { CellDetails } from './details.js';
import { button, h, isChanged, replace, section, setText } from './dom.js';
import { AddressMap, BlockList, Legend } from './map.js';
import { errorBox } from './messages.js';
import { mapLink } from './route.js';
import { throttled } from './signal.js';
import { inUse } from './states.js';
import { blockState, networkName, number } from './words.js';

/**
 * @param {Context} context
 * @returns {View}
 */
export function mapView(context) {
  const { api, end, route, feed } = context;
  const network = route.query.get('network');
  const prefix = route.query.get('prefix');
  const address = route.query.get('address');
  const crumbs = h('nav', { 'aria-label': 'Prefixes', class: 'crumbs' });
  const details = new CellDetails(api, end);
  const legend = new Legend();
  const blocks = new BlockList();
  const problem = h('div', {});
  /** @type {HTMLElement | null} */
  let absent = null;
  const showProblem = () => {
    picture.hidden = absent !== null;
    replace(problem, absent, absent && otherNetworks(feed.cluster.value.networks));
  };
  const summary = h('p', { class: 'quiet' });
  const map = new AddressMap(context, {
    network,
    prefix,
    address,
    onAbsent: (content, error) => {
      const { networks: all } = feed.cluster.value;
      const isKnown = network === null || all.some(({ cidr }) => cidr === network);
      absent = error && !isKnown ? errorBox(`The cluster has no network ${network}.`) : content;
      showProblem();
    },
    onScene: (scene) => {
      absent = null;
      showProblem();
      legend.show(scene);
      blocks.show(scene);
      const { prefix: shown, network: of } = scene.view;
      if (isChanged(crumbs, [shown, of])) replace(crumbs, crumbList(scene));
      setText(summary, scale(scene));
      table.is(scene);
    },
    onCell: (scene, cell, findings) => details.show(scene, cell, findings),
  });
  const table = new TableBehind(context, address);
  const networks = h('div', {});
  feed.cluster.follow(end, ({ networks: all }) => {
    if (absent) showProblem();
    const names = all.map(({ cidr, role, name }) => [cidr, role, name]);
    if (!isChanged(networks, names)) return;
    replace(networks, networkList(all, network ?? all[0]?.cidr));
  });
  const picture = h(
    'div',
    { class: 'with-aside' },
    h(
      'div',
      {},
      h('div', { class: 'bar' }, crumbs, table.toggle),
      summary,
      map.element,
      table.element,
    ),
    h(
      'aside',
      { 'aria-label': 'Details of the map' },
      section('At the cursor', details.element),
      section('States', legend.element),
      blocks.element,
      section('Networks', networks),
    ),
  );
  const element = h('div', {}, problem, picture);
  return { title: `Map ${prefix ?? network ?? ''}`.trim(), element, start: () => map.start() };
}

/**
 * @param {Network[]} networks
 * @param {string | null | undefined} shown
 */
function networkList(networks, shown) {
  const links = networks.map(({ cidr, role, name }) => {
    const attributes = { href: mapLink(cidr, cidr), 'aria-current': cidr === shown && 'true' };
    return h(
      'li',
      {},
      h('a', attributes, cidr),
      h('span', { class: 'quiet' }, ` ${networkName({ role, name })}`),
    );
  });
  return h('ul', { class: 'plain' }, ...links);
}

/** @param {Network[]} networks */
function otherNetworks(networks) {
  if (networks.length === 0) return null;
  return h('div', {}, h('p', {}, 'The networks of the cluster:'), networkList(networks, null));
}

/** @param {Scene} scene */
function crumbList(scene) {
  const { network, prefix } = scene.view;
  const items = scene.crumbs().map((crumb) => {
    const isHere = crumb === prefix;
    const attributes = { href: mapLink(network.cidr, crumb), 'aria-current': isHere && 'location' };
    return h('li', {}, h('a', attributes, crumb));
  });
  return h('ol', {}, ...items);
}

/**
 * The part that is shown, and the meaning of a cell.
 *
 * @param {Scene} scene
 */
function scale({ view, cells }) {
  const [first] = cells;
  const length = first?.prefix.split('/')[1] ?? '';
  const isAddress = /\/(32|128)$/.test(first?.prefix ?? '');
  const size = isAddress ? 'an address' : `a /${length}`;
  const each =
    view.layout === 'curve'
      ? `each cell is ${size}, along a Hilbert curve`
      : 'each cell is a used prefix';
  const block = view.outlines.length === 1 ? view.outlines[0] : undefined;
  const owner = block && block.cidr === view.prefix ? `, ${blockState(block.state)}` : '';
  const count = inUse(view.counts);
  return `${number(count)} ${count === 1 ? 'address' : 'addresses'} in use${owner}; ${each}`;
}

/** The table of addresses, hidden until it is asked for, or has an address to show. */
export class TableBehind {
  element = h('div', { hidden: true });
  toggle;
  #context;
  /** @type {Scene | null} */ #scene = null;
  /** @type {PrefixAddresses | null} */ #addresses = null;
  #refresh;
  #address;

  /**
   * @param {Context} context
   * @param {string | null} [address] is marked
   */
  constructor(context, address = null) {
    this.#context = context;
    this.#address = address;
    this.toggle = button('Show as table', () => this.#turn(), { 'aria-expanded': 'false' });
    this.#refresh = throttled(context.pause, context.end, () => this.#addresses?.read());
  }

  /** @param {Scene} scene */
  is(scene) {
    const isNew = scene.view !== this.#scene?.view;
    this.#scene = scene;
    if (this.#address !== null && !this.#addresses) this.#turn();
    if (isNew || !this.element.hidden) this.#refresh();
  }

  #turn() {
    this.element.hidden = !this.element.hidden;
    this.toggle.setAttribute('aria-expanded', String(!this.element.hidden));
    if (this.element.hidden || this.#addresses || !this.#scene) return;
    const { api, end } = this.#context;
    this.#addresses = new PrefixAddresses(api, this.#scene.view.prefix, end);
    if (this.#address !== null) this.#addresses.mark(this.#address);
    replace(this.element, h('h2', {}, 'Addresses'), this.#addresses.element);
    this.#refresh();
  }
}
