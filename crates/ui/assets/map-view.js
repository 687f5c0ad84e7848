// A prefix of a network: its map, the legend, and the addresses as a table.

/** @import { Network } from '../types/contract.js' */
/** @import { ServerError } from './api.js' */
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
import { networkName, number } from './words.js';

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
  const refusal = h('div', {});
  /** @type {ServerError | null} */
  let refused = null;
  const showRefusal = () => {
    if (refused) replace(refusal, refusalOf(refused, feed.cluster.value.networks, network));
  };
  const summary = h('p', { class: 'quiet' });
  const map = new AddressMap(context, {
    network,
    prefix,
    address,
    onRefused: (error) => {
      refused = error;
      showRefusal();
      return refusal;
    },
    onScene: (scene) => {
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
    showRefusal();
    const names = all.map(({ cidr, role, name }) => [cidr, role, name]);
    if (!isChanged(networks, names)) return;
    replace(networks, networkList(all, network ?? all[0]?.cidr));
  });
  const element = h(
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

/**
 * The refusal of a map. That of an unknown network leads to the others.
 *
 * @param {ServerError} error
 * @param {Network[]} networks
 * @param {string | null} network
 */
function refusalOf(error, networks, network) {
  const isKnown = network === null || networks.some(({ cidr }) => cidr === network);
  if (isKnown || networks.length === 0) return errorBox(error);
  const why = `The cluster has no network ${network}. Its networks:`;
  return h('div', {}, errorBox(why), networkList(networks, null));
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
  const owner = block && block.cidr === view.prefix ? `, ${block.state}` : '';
  return `${number(inUse(view.counts))} in use${owner}; ${each}`;
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
