// The views by the first part of their address.

/** @import { Api } from './api.js' */
/** @import { ClusterFeed } from './cluster.js' */
/** @import { Route } from './route.js' */
/** @import { Signal } from './signal.js' */

import { findings } from './findings.js';
import { mapView } from './map-view.js';
import { node } from './node.js';
import { nodes } from './nodes.js';
import { overview } from './overview.js';
import { pod } from './pod.js';
import { pods } from './pods.js';
import { waiting } from './waiting.js';

/**
 * What a view works with.
 *
 * @typedef {object} Context
 * @property {Api} api
 * @property {ClusterFeed} feed
 * @property {Signal<string>} theme
 * @property {Route} route
 * @property {AbortSignal} end aborted when the view is left
 * @property {boolean} isLive false for a recording, where views read again with each cluster
 * @property {number} pause the least time between two readings, in milliseconds
 * @property {boolean} knowsMachine whether the server explains decisions: only a listener does
 */

/**
 * @typedef {object} View
 * @property {string} title
 * @property {HTMLElement} element
 * @property {() => void} [start] called when the element is in the document
 */

/** @type {Record<string, (context: Context) => View>} */
const VIEWS = { '': overview, map: mapView, nodes, node, pods, pod, waiting, findings };

/** The views of the navigation: the path and the text. */
export const NAVIGATION = /** @type {const} */ ([
  ['', 'Overview'],
  ['map', 'Map'],
  ['nodes', 'Nodes'],
  ['pods', 'Pods'],
  ['waiting', 'Waiting'],
  ['findings', 'Findings'],
]);

/**
 * @param {Context} context
 * @returns {View | null} null if the address has no view
 */
export function viewOf(context) {
  const name = context.route.path[0] ?? '';
  const make = Object.hasOwn(VIEWS, name) ? VIEWS[name] : undefined;
  return make?.(context) ?? null;
}
