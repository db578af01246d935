"use strict";

/* The data in this page: compressed chunks, each unpacked when it is first asked for. */
const store = (() => {
  const KEPT_GROUPS = 32;
  const groups = new Map(); // number -> promise, the least recently used first
  let index = null;
  let searchTexts = null;
  const byKey = new Map();

  /** Unpacks one chunk: base64, gzip, JSON. */
  async function unpack(id) {
    const base64 = dom.byId(id).textContent;
    const bytes = Uint8Array.fromBase64
      ? Uint8Array.fromBase64(base64)
      : Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /** Reads the index; everything else is there afterwards. */
  async function open() {
    index = await unpack("index");
    index.rows.key.forEach((key, row) => byKey.set(key, row));
    index.members = index.groups.key.map(() => []);
    index.rows.group.forEach((group, row) => index.members[group].push(row));
    return index;
  }

  /** The data of a group: its texts, evidence and members. */
  function group(number) {
    const found = groups.get(number) ?? unpack(`group-${number}`).then(named);
    groups.delete(number);
    groups.set(number, found);
    if (groups.size > KEPT_GROUPS) groups.delete(groups.keys().next().value);
    return found;

    function named(data) {
      index.members[number].forEach((row, place) => {
        data.members[place].row = row;
      });
      return data;
    }
  }

  /** { row, group, member } of a row number. */
  async function trajectory(row) {
    const data = await group(index.rows.group[row]);
    return { row, group: data, member: data.members.find((member) => member.row === row) };
  }

  /** What the text search looks through, for each row, in lower case. */
  function searchable() {
    searchTexts ??= unpack("search").then((actions) => {
      const { rows, groups } = index;
      return actions.map((text, row) =>
        [rows.key[row], rows.family[row], groups.task[rows.group[row]], text].join("\n").toLowerCase(),
      );
    });
    return searchTexts;
  }

  return {
    open,
    group,
    trajectory,
    searchable,
    get index() {
      return index;
    },
    get rows() {
      return index.rows;
    },
    /** Row number of a trajectory's name; undefined for an unknown one. */
    rowOf: (key) => byKey.get(key),
    groupOf: (key) => index.groups.key.indexOf(key),
    membersOf: (number) => index.members[number],
  };
})();
