// A node: its blocks, their addresses, and what its machine knows.

/** @import { LeaseFile, Link, NodeDetails, Route, Sandbox } from '../types/contract.js' */
/** @import { Column } from './table.js' */
/** @import { Context, View } from './views.js' */

import { addressTable } from './addresses.js';
import { ago } from './ages.js';
import { isAbort } from './api.js';
import { CellDetails } from './details.js';
import { definitions, h, isChanged, replace, section } from './dom.js';
import { Events } from './events.js';
import { AddressMap, Legend } from './map.js';
import { absent, errorBox, hint } from './messages.js';
import { blockLinks, fillBar, stateOf } from './nodes.js';
import { link, nodeLink, podLink } from './route.js';
import { throttled } from './signal.js';
import { DataTable } from './table.js';
import { topologyPicture } from './topology.js';
import { counted, number } from './words.js';
import { yamlPanel } from './yaml.js';

/** The blocks that have a picture. */
const MOST_MAPS = 2;

/**
 * @param {Context} context
 * @returns {View}
 */
export function node(context) {
  const { api, feed, end, isLive, route } = context;
  const name = route.path[1] ?? '';
  const facts = h('div', {});
  const problem = h('div', {});
  const list = h('a', { href: link(['nodes']) }, 'All nodes');
  const maps = h('div', {});
  /** Ends with the present maps. */
  let ofMaps = new AbortController();
  const addresses = addressTable(`Addresses of ${name}`);
  const network = h('div', {});
  const machine = new MachineTables();
  const events = new Events(context, { kind: 'Node', namespace: '', name });
  const read = async () => {
    try {
      /** @type {NodeDetails} */
      const found = await api.json(`/summary/v1alpha1/nodes/${encodeURIComponent(name)}`, end);
      replace(problem);
      frames.hidden = false;
      if (isChanged(facts, found.node)) replace(facts, factsOf(found));
      addresses.update(found.addresses);
      const { topology, networkUnknown } = found;
      if (isChanged(network, [topology, networkUnknown])) replace(network, networkOf(found));
      machine.update(found);
      const cidrs = found.node.blocks.slice(0, MOST_MAPS).map(({ cidr }) => cidr);
      if (!isChanged(maps, cidrs)) return;
      // Each map has a stream, and browsers allow few connections to a server.
      ofMaps.abort();
      ofMaps = new AbortController();
      const untilChanged = AbortSignal.any([end, ofMaps.signal]);
      replace(maps, ...mapsOf({ ...context, end: untilChanged }, cidrs));
    } catch (error) {
      if (isAbort(error)) return;
      // A deleted node leaves what was known of it; another moment has nothing.
      if (!isLive) frames.hidden = true;
      const names = frames.hidden ? feed.cluster.value.nodes.keys() : [];
      replace(problem, absent(errorBox(error), name, names, nodeLink, list));
    }
  };
  const refresh = throttled(context.pause, end, async () => {
    await Promise.all([read(), events.read()]);
  });
  const frames = h(
    'div',
    { hidden: true },
    facts,
    maps,
    section('Network', network),
    section('Addresses', addresses.element),
    machine.element,
    section('Events', events.element),
    yamlPanel(api, `/api/v1/nodes/${encodeURIComponent(name)}`, end),
  );
  const element = h('div', {}, problem, frames);
  return { title: `Node ${name}`, element, start: () => feed.cluster.follow(end, refresh) };
}

/** @param {NodeDetails} details */
function factsOf({ node: row }) {
  return definitions([
    ['State', stateOf(row)],
    ['Blocks', blockLinks(row.blocks)],
    ['Fill', fillBar(row)],
    ['In use', `${number(row.used)} of ${number(row.capacity)}`],
    ['Without address', row.waiting > 0 && `${counted(row.waiting, 'pod')} waiting`],
    ['Orphaned', number(row.orphaned)],
    ['Pods', number(row.pods)],
  ]);
}

/**
 * @param {Context} context
 * @param {string[]} cidrs
 */
function mapsOf(context, cidrs) {
  if (cidrs.length === 0) {
    return [
      hint('This node has no block, so no pod can run on it. The events of the node say why.'),
    ];
  }
  const details = new CellDetails(context.api, context.end);
  const legend = new Legend();
  const maps = cidrs.map((prefix) => {
    const map = new AddressMap(context, {
      prefix,
      onScene: (scene) => legend.show(scene),
      onCell: (scene, cell, findings) => cell && details.show(scene, cell, findings),
    });
    // It is measured when it is in the document.
    queueMicrotask(() => map.start());
    return h('div', {}, h('h2', { class: 'code' }, prefix), map.element);
  });
  const aside = h(
    'aside',
    { 'aria-label': 'Details of the map' },
    section('At the cursor', details.element),
    section('States', legend.element),
  );
  return [h('div', { class: 'with-aside' }, h('div', {}, ...maps), aside)];
}

/**
 * The picture of the node's network, or the reason why there is none.
 *
 * @param {NodeDetails} details
 */
function networkOf({ node: { name }, topology, networkUnknown }) {
  if (topology) return topologyPicture(name, topology);
  return h('p', { class: 'quiet' }, networkUnknown ?? 'The server does not say what it is.');
}

/** What only a server on the node's machine knows; absent where it does not. */
class MachineTables {
  element = h('div', {});
  #tables = {
    sandboxes: new DataTable({
      caption: 'Sandboxes',
      columns: SANDBOX,
      key: (row) => row.id,
      empty: 'none',
    }),
    leaseFiles: new DataTable({
      caption: 'Lease files',
      columns: LEASE,
      key: (row) => `${row.network}/${row.ip}`,
      empty: 'none',
    }),
    routes: new DataTable({
      caption: 'Routes',
      columns: ROUTE,
      key: (row) => JSON.stringify(row),
      empty: 'none',
    }),
    links: new DataTable({
      caption: 'Links',
      columns: LINK,
      key: (row) => row.name,
      empty: 'none',
    }),
  };

  /** @param {NodeDetails} details */
  update({ sandboxes, leaseFiles, routes, links }) {
    const tables = this.#tables;
    const parts = [
      sandboxes && section('Sandboxes', tables.sandboxes.element),
      leaseFiles && section('Lease files', tables.leaseFiles.element),
      routes && section('Routes', tables.routes.element),
      links && section('Links', tables.links.element),
    ];
    tables.sandboxes.update(sandboxes ?? []);
    tables.leaseFiles.update(leaseFiles ?? []);
    tables.routes.update(routes ?? []);
    tables.links.update(links ?? []);
    const arePresent = parts.map((part) => !!part);
    if (isChanged(this.element, arePresent)) replace(this.element, ...parts);
  }
}

/** @param {string | null} pod */
function podName(pod) {
  return pod?.includes('/') ? h('a', { href: podLink(pod) }, pod) : (pod ?? '');
}

/** @type {Column<Sandbox>[]} */
const SANDBOX = [
  { title: 'Pod', value: ({ pod }) => pod, show: ({ pod }) => podName(pod) },
  { title: 'State', value: ({ state }) => state },
  { title: 'Addresses', value: ({ ips }) => ips.join(' '), isCode: true },
  { title: 'Id', value: ({ id }) => id, show: ({ id }) => id.slice(0, 13), isCode: true },
  {
    title: 'Created',
    value: ({ created }) => created ?? '',
    show: ({ created }) => ago(created),
  },
];

/** @type {Column<LeaseFile>[]} */
const LEASE = [
  { title: 'Address', value: ({ ip }) => ip, isCode: true },
  { title: 'Network', value: ({ network }) => network },
  {
    title: 'Container',
    value: ({ containerID }) => containerID,
    show: ({ containerID }) => containerID.slice(0, 13),
    isCode: true,
  },
  { title: 'Interface', value: ({ ifName }) => ifName, isCode: true },
  {
    title: 'Written',
    value: ({ modified }) => modified ?? '',
    show: ({ modified }) => ago(modified),
  },
];

/** @type {Column<Route>[]} */
const ROUTE = [
  { title: 'Destination', value: ({ destination }) => destination, isCode: true },
  { title: 'Via', value: ({ via }) => via ?? '', isCode: true },
  { title: 'Device', value: ({ dev }) => dev ?? '', isCode: true },
];

/** @type {Column<Link>[]} */
const LINK = [
  { title: 'Name', value: ({ name }) => name, isCode: true },
  { title: 'Kind', value: ({ kind }) => kind },
  { title: 'State', value: ({ up }) => (up ? 'up' : 'down') },
  { title: 'Bridge', value: ({ master }) => master ?? '', isCode: true },
  { title: 'Peer', value: ({ peer }) => peer ?? '', show: ({ peer }) => podName(peer) },
  { title: 'Addresses', value: ({ addresses }) => addresses.join(' '), isCode: true },
];
