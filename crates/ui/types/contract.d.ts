// The documents of the server, as the page reads them. Only `tsc` reads this file.

export type StateName =
  | 'duplicate'
  | 'outside'
  | 'orphaned'
  | 'draining'
  | 'pod'
  | 'service'
  | 'node'
  | 'withheld'
  | 'reserved'
  | 'gateway'
  | 'free'
  | 'unassigned';

/** Numbers beyond 2^53-1 are strings of digits. */
export type Counts = Partial<Record<StateName, number | string>>;

/** What a server says to everybody. */
export interface PageServer {
  source: 'apiserver' | 'listener' | 'recording';
  needsLogin: boolean;
}

export interface Session {
  source: PageServer['source'];
  user: string | null;
  server: string;
}

export interface Network {
  name: string;
  role: 'pods' | 'services' | 'nodes';
  cidr: string;
  counts: Counts;
}

export interface Block {
  cidr: string;
  state: string;
}

export interface NodeRow {
  name: string;
  blocks: Block[];
  ready: boolean;
  unschedulable: boolean;
  used: number;
  capacity: number | null;
  orphaned: number;
  pods: number;
  /** Those of them that have no address yet. */
  waiting: number;
}

export interface WaitingGroup {
  reason: string;
  message: string;
  count: number;
  pods: { namespace: string; name: string; since: string | null }[];
}

export interface Finding {
  code: string;
  severity: 'error' | 'warning' | 'info';
  message: string;
  repair: string;
  places?: FindingPlace[];
  pods?: string[];
  nodes?: string[];
}

/** A block or address, and the narrowest network around it. */
export interface FindingPlace {
  prefix: string;
  network: string | null;
}

/** A rule of the audit. */
export interface Check {
  code: string;
  meaning: string;
  isMade: boolean;
  /** `on`, what it went by, or why it was not made. */
  state: string;
}

export interface PodTotals {
  total: number;
  running: number;
  waiting: number;
}

/** The members of the documents `CLUSTER` and `CHANGES`. */
export interface ClusterDocument {
  type: 'CLUSTER' | 'CHANGES' | 'BOOKMARK';
  revision?: string;
  networks?: Network[];
  nodes?: NodeRow[];
  goneNodes?: string[];
  pods?: PodTotals;
  waiting?: WaitingGroup[];
  findings?: Finding[];
  findingsTotal?: number;
  checks?: Check[];
}

export interface Cell {
  x: number;
  y: number;
  prefix: string;
  counts: Counts;
  dominant: StateName;
  block: number | null;
  blocksInside: number;
  fill: number;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Outline {
  block: number;
  cidr: string;
  state: string;
  node: string | null;
  /** Absent if there are none. */
  otherNodes?: string[];
  rect: Rect;
}

export interface View {
  network: { role: Network['role']; cidr: string; name: string };
  prefix: string;
  layout: 'curve' | 'used';
  width: number;
  height: number;
  cells: Cell[];
  outlines: Outline[];
  block: number | null;
  counts: Counts;
  hidden: Counts;
}

export interface MapBlock {
  cidr: string;
  node: string | null;
  /** Absent if there are none. */
  otherNodes?: string[];
  state: string;
  /** More about a state that is not simply a node's; empty if there is nothing more. */
  details?: string;
}

export interface MapDocument {
  type: 'SCENE' | 'CELLS' | 'BOOKMARK';
  revision?: string;
  view?: View;
  blocks?: Record<string, MapBlock>;
  cells?: Cell[];
  counts?: Counts;
}

export interface Address {
  ip: string;
  state: StateName;
  holders: { kind: string; name: string; node?: string | null }[];
}

export interface AddressPage {
  items: Address[];
  continue?: string | null;
}

export interface NodeDetails {
  node: NodeRow;
  addresses: Address[];
  sandboxes: Sandbox[] | null;
  leaseFiles: LeaseFile[] | null;
  routes: Route[] | null;
  links: Link[] | null;
  topology: TopologyLayout | null;
  /** A sentence that says why routes, links and topology are null. */
  networkUnknown: string | null;
}

/** The network of a node as boxes and lines, in columns and rows of characters. */
export interface TopologyLayout {
  width: number;
  height: number;
  /** Outer ones first. */
  boxes: TopologyBox[];
  /** From the right edge of a box to the left edge of another. */
  lines: { from: [number, number]; to: [number, number] }[];
}

export interface TopologyBox {
  role: 'namespace' | 'link' | 'downLink' | 'pod' | 'routes';
  rect: Rect;
  /** The first line is a heading. */
  lines: string[];
}

export interface Sandbox {
  id: string;
  pod: string;
  state: string;
  ips: string[];
  created: string | null;
}

export interface LeaseFile {
  network: string;
  ip: string;
  containerID: string;
  ifName: string;
  modified: string | null;
}

export interface Route {
  destination: string;
  via: string | null;
  dev: string | null;
}

export interface Link {
  name: string;
  /** Empty if the kernel names none. */
  kind: string;
  up: boolean;
  master: string | null;
  peer: string | null;
  addresses: string[];
}

export interface Span {
  name: string;
  service: string;
  process: string;
  start: number;
  seconds: number;
  parent: number | null;
  attributes: Record<string, unknown>;
  error: string | null;
}

/** A line in place of the spans from a place to another. */
export interface Fold {
  from: number;
  until: number;
  text: string;
}

/** A time without a span before that at a place; the text is a phrase behind the duration. */
export interface Gap {
  before: number;
  start: number;
  seconds: number;
  text: string;
}

export interface Trace {
  spans: Span[];
  /** Outer ones first. */
  folds: Fold[];
  gaps: Gap[];
  droppedSpans: number;
  droppedAttempts: { name: string; process: string; count: number }[];
  began: string;
}

export interface Explanation {
  pod: string;
  decision: string;
  /** 0 if the scheduler has not tried yet, or does not know. */
  attempts: number;
  nextTrySeconds: number | null;
  /** Each says for which nodes it is. */
  suggestions: string[];
  /** Rules that may decide, and were not examined. */
  notConsidered: string[];
  nodes: {
    name: string;
    feasible: boolean;
    reasons: string[];
    scores?: Record<string, number> | null;
    total?: number | null;
  }[];
}

export interface Recording {
  name: string;
  /** RFC 3339; null if the recording does not tell. */
  began: string | null;
  duration: number;
  steps: {
    /** 0 for everything before the first one. */
    number: number;
    title: string;
    from: number;
    to: number;
    outcome: 'ok' | 'failed' | null;
  }[];
  times: number[];
  /** From and to, in seconds: while the audit finds an error. Null if there are too many changes. */
  faults: [number, number][] | null;
}

export interface Metadata {
  name: string;
  namespace?: string;
  uid?: string;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  annotations?: Record<string, string>;
  labels?: Record<string, string>;
  ownerReferences?: { kind: string; name: string }[];
}

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

export interface Pod {
  metadata: Metadata;
  spec?: { nodeName?: string; hostNetwork?: boolean };
  status?: {
    phase?: string;
    reason?: string;
    message?: string;
    podIP?: string;
    podIPs?: { ip: string }[];
    conditions?: Condition[];
  };
}

export interface PodList {
  metadata: { continue?: string; resourceVersion?: string; remainingItemCount?: number };
  items: Pod[];
}

export interface ClusterEvent {
  metadata: Metadata;
  involvedObject: { kind?: string; name?: string; namespace?: string; uid?: string };
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  firstTimestamp?: string | null;
  lastTimestamp?: string | null;
  eventTime?: string | null;
  source?: { component?: string };
  reportingComponent?: string;
  series?: { count?: number; lastObservedTime?: string };
}

/** A line of a watch of the Kubernetes API. */
export interface WatchEvent<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T;
}
