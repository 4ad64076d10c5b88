"""How a training report looks, beyond the style of all reports: light and dark, wide and narrow."""

from vitrail import charts

_PAGE = """
:root { --one: #2a6fb8; --two: #b4540a; --warm: #d9661c; --most: 62%; --raised: #f6f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --one: #7db7f0; --two: #f2a65e; --warm: #ee8a3c; --most: 50%; --raised: #1b212b }
}
html { scroll-behavior: smooth }
body { max-width: 70rem; padding: 3.5rem 1.5rem 5rem }
h1 { margin: 0 0 .6rem; font-size: clamp(1.6rem, 4vw, 2.2rem); text-wrap: balance; overflow-wrap: anywhere }
h2 { margin: 3.5rem 0 1rem; scroll-margin-top: 1rem }
p, .notes { margin: 0 0 1rem; text-wrap: pretty }
a { color: var(--accent) }
.over { margin: 0 0 .4rem; font-size: .8rem; letter-spacing: .08em; text-transform: uppercase }
.lead { max-width: 52rem; margin-bottom: 2rem; font-size: 1.15rem; color: var(--ink) }
.aside { max-width: 52rem; font-size: .92rem; color: var(--soft) }
.lead + .aside { margin-top: -1.4rem }
.charts + .aside { margin-top: 1rem }
.tiles { grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: 1px; margin: 0 0 1.5rem; padding: 1px;
  overflow: hidden; border-radius: .6rem; box-shadow: inset 0 0 0 1px var(--line) }
.tiles div { padding: .9rem 1rem 1rem; box-shadow: 0 0 0 1px var(--line) }
.tiles dt { font-size: .85rem }
.tiles dd { white-space: nowrap; font-size: 1.4rem; font-weight: 600; line-height: 1.25; letter-spacing: -.01em }
.tiles small { display: block; white-space: normal; margin-top: .2rem; font-size: .78rem; font-weight: 400;
  line-height: 1.35; letter-spacing: 0; color: var(--soft) }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 0; padding: 0; list-style: none; font-size: .87rem }
nav a { text-decoration: none }
nav a:hover { text-decoration: underline }
.notes { max-width: 48rem; padding-left: 1.1rem }
.notes li { margin: .25rem 0 }
figure { min-width: 0; margin: 0 }
figcaption { font-size: .88rem; color: var(--soft) }
figcaption b { font-weight: 600; color: var(--ink) }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); gap: 2rem 3rem }
.charts.small { grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); margin-top: 2rem }
.key { margin-left: .9rem; white-space: nowrap }
.key::before { content: ""; display: inline-block; width: .95rem; height: .2rem; margin-right: .4rem;
  border-radius: 1px; vertical-align: .25em; background: var(--one) }
.key.b::before { background: var(--two) }
.key.warm { margin: 0 }
.key.warm::before { height: .7rem; width: .7rem; vertical-align: -.05em; background: var(--warm); opacity: .55 }
.key.faint { margin: 0 }
.key.faint::before { height: .7rem; width: .7rem; vertical-align: -.05em; opacity: .4 }
.beside { display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; align-items: flex-end }
.beside > :first-child { max-width: 100% }
.beside > :last-child { flex: 1 1 20rem; min-width: 0; overflow-x: auto }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1.5rem 3rem;
  align-items: start }
.heat { width: 100%; image-rendering: pixelated; border: 1px solid var(--line) }
.matrix { width: auto; border-collapse: separate; border-spacing: 2px; font-size: .85rem }
.matrix th, .matrix td { border: 0; padding: .35rem .3rem }
.matrix tbody th { position: sticky; left: 0; padding-right: .7rem; text-align: right; background: var(--paper) }
.matrix thead th { padding: .3rem 0; text-align: left; vertical-align: bottom }
.matrix thead span { writing-mode: vertical-rl; transform: rotate(180deg); margin: 0 auto; display: block }
.matrix tbody td { min-width: 2.9rem; text-align: center; border-radius: .25rem }
.matrix .none { color: var(--soft); opacity: .5 }
.matrix .right { background: color-mix(in srgb, var(--one) calc(var(--share) * var(--most)), var(--paper)) }
.matrix .wrong { background: color-mix(in srgb, var(--warm) calc(var(--share) * var(--most)), var(--paper)) }
tbody th { color: var(--ink); font-weight: 400 }
.classes { max-width: 46rem }
.meter { min-width: 9.5rem; background: linear-gradient(var(--one), var(--one)) no-repeat left 1.2rem center /
  calc(var(--share) * 3.6rem) .35rem }
.classes .meter:last-child { min-width: 8rem }
.classes.many { max-width: none }
.classes.many .meter { min-width: 8rem; background-size: calc(var(--share) * 2.2rem) .35rem }
.cost dl { margin-bottom: 1.8rem; grid-template-columns: repeat(3, max-content 1fr) }
details { margin: 1rem 0 0 }
summary { cursor: pointer; color: var(--accent); font-size: .95rem }
details > :not(summary) { margin-top: .8rem }
pre { margin: 0; padding: 1rem 1.2rem; overflow-x: auto; border-radius: .5rem; background: var(--raised);
  font: .85rem/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace }
.command { white-space: pre-wrap; overflow-wrap: anywhere }
.shots { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.2rem, 1fr)); gap: 1.4rem 1.1rem }
.shots img, .pairs img { display: block; width: 100%; height: auto; aspect-ratio: 1; object-fit: contain;
  border-radius: .35rem; background: var(--raised) }
.pairs img { aspect-ratio: auto }
.tiny { image-rendering: pixelated }
.shots figcaption, .pairs figcaption { margin-top: .45rem; line-height: 1.4; overflow-wrap: anywhere }
.said { font-weight: 600; color: var(--two) }
.sure { white-space: nowrap; font-variant-numeric: tabular-nums }
.name { display: block; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; font-size: .78rem }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 44%), 1fr)); gap: 1.5rem 1.2rem }
.pair div, .triple div { display: grid; grid-template-columns: 1fr 1fr; gap: .3rem }
.triple div { grid-template-columns: 1fr 1fr 1fr }
@media (max-width: 40rem) {
  body { padding: 2rem 1.1rem 4rem }
  .tiles { grid-template-columns: 1fr 1fr }
  .tiles div { padding: .7rem .9rem }
  .tiles dd { font-size: 1.3rem }
  .key { margin-left: .5rem }
  .cost dl { grid-template-columns: max-content 1fr }
  .matrix { font-size: .78rem; border-spacing: 1px }
  .matrix tbody td { min-width: 1.9rem; padding: .3rem .1rem }
  .matrix tbody th { padding-right: .4rem }
  th, td { padding-right: .8rem }
  .meter, .classes .meter:last-child, .classes.many .meter { min-width: 0; background: none }
  .chart text { font-size: 13px }
  .small .chart text { font-size: 11.5px }
  .shots { grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); gap: 1.1rem .8rem }
}
@media print { nav { display: none } section { break-inside: avoid } }
""".strip()

STYLE = f"{charts.STYLE}\n{_PAGE}"  # what the page says of charts on a narrow screen comes last
