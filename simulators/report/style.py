"""The report's style sheet: light and dark by the reader's own setting, nothing fetched."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2330; --quiet: #667085; --rule: #e4e7ec; --card: #f8f9fb;
  --local: #8a94a6; --global: #2f6fc4; --tuned: #2a9d8f; --personal: #d9612a; --loss: #7a5bb5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171f; --ink: #e7eaf0; --quiet: #98a2b3; --rule: #2b3140; --card: #1b1f2a;
    --local: #8f99ab; --global: #6aa5f0; --tuned: #4cc2b3; --personal: #f08a55; --loss: #ab90e0;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 .75rem; }
.note { color: var(--quiet); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; padding: 1.1rem 1.25rem;
  margin-top: 1.1rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 0 1.1rem; }
svg { display: block; width: 100%; height: auto; }
div.wide { overflow-x: auto; }
div.wide svg { min-width: 44rem; }
svg text { fill: var(--ink); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--quiet); }
.grid { stroke: var(--rule); stroke-width: 1; }
.reach { stroke: var(--quiet); stroke-width: 1.5; opacity: .45; }
.curve { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.dot { stroke: var(--card); stroke-width: 1.5; }
.bar { fill: var(--global); }
.local { --series: var(--local); } .global { --series: var(--global); } .tuned { --series: var(--tuned); }
.personal { --series: var(--personal); } .loss { --series: var(--loss); }
.coordinator-in { --series: var(--global); } .coordinator-out { --series: var(--personal); }
.device-down { --series: var(--tuned); } .device-up { --series: var(--local); }
.device-down, .device-up { stroke-dasharray: 7 4; }
.curve { stroke: var(--series); } .dot { fill: var(--series); }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; margin: 0 0 .5rem; padding: 0; list-style: none;
  font-size: .88rem; }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; background: var(--series);
  margin-right: .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th { text-align: left; font-weight: 600; color: var(--quiet); }
th, td { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); }
tr > * + * { text-align: right; }
tr:last-child td { border-bottom: 0; }
tr.chosen td { font-weight: 650; }
.facts td + td { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .85rem; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
"""
