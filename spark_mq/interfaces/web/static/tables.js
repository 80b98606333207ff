// Sorts a table by a click on a heading. Without this file tables stay as they came.
"use strict";

const chosen = new Map(); // the heading and direction by table, because tables refresh

function seconds(text) {
  const units = { d: 86400, h: 3600, m: 60, s: 1 };
  const found = text.match(/^(?:in )?((?:[\d.]+[dhms])+)(?: ago)?$/);
  if (!found) return null;
  return [...found[1].matchAll(/([\d.]+)([dhms])/g)]
    .reduce((sum, [, number, unit]) => sum + number * units[unit], 0);
}

function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell) return "";
  const time = cell.querySelector("time");
  if (time) return Date.parse(time.dateTime);
  const text = cell.textContent.trim();
  const place = text.match(/^(\d+):(\d+)/);
  if (place) return place[1] * 2 ** 32 + Number(place[2]);
  const number = text.replaceAll(",", "").match(/^-?[\d.]+%?$/);
  return number ? parseFloat(number[0]) : seconds(text) ?? text.toLowerCase();
}

function compare(one, other) {
  if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
  return typeof one === "number" ? 1 : -1; // "-" and other texts before numbers
}

function keyOf(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  return location.pathname + "\n" + headings.join("\n");
}

function sort(table, column, direction) {
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => direction * compare(valueOf(a, column), valueOf(b, column)));
  table.tBodies[0].append(...rows);
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    if (at === column) cell.ariaSort = direction > 0 ? "ascending" : "descending";
    else cell.removeAttribute("aria-sort");
  });
}

function makeSortable(table) {
  if (!table.tHead || table.tBodies[0].rows.length < 2 || table.dataset.sortable) return;
  table.dataset.sortable = "yes";
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (!cell.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      // Numbers begin with the greatest.
      const first = cell.classList.contains("number") ? "descending" : "ascending";
      const falls = cell.ariaSort ? cell.ariaSort === "ascending" : first === "descending";
      chosen.set(keyOf(table), [column, falls ? -1 : 1]);
      sort(table, column, falls ? -1 : 1);
    });
  });
  const before = chosen.get(keyOf(table));
  if (before) sort(table, ...before);
}

function makeAllSortable() {
  document.querySelectorAll("main table").forEach(makeSortable);
}

document.addEventListener("DOMContentLoaded", makeAllSortable);
document.addEventListener("htmx:load", makeAllSortable);
