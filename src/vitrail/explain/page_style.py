"""How a page of explanations looks, beyond the style of all reports: light and dark, wide and narrow."""

STYLE = """
:root { --one: #2a6fb8; --two: #b4540a; --raised: #f4f5f8; --edge: #c9ced8 }
@media (prefers-color-scheme: dark) { :root { --one: #7db7f0; --two: #f2a65e; --raised: #1b212b; --edge: #465062 } }
body { max-width: 78rem; padding: 2.6rem 1.5rem 4rem }
h1 { margin: 0 0 .5rem; font-size: clamp(1.5rem, 4vw, 2rem); text-wrap: balance; overflow-wrap: anywhere }
h2 { margin: 3rem 0 .8rem }
h3 { margin: 0 0 .45rem; font-size: .85rem; font-weight: 600 }
p { margin: 0 0 .9rem; max-width: 52rem; text-wrap: pretty }
.over { margin: 0 0 .3rem; font-size: .8rem; letter-spacing: .08em; text-transform: uppercase }
.lead { margin-bottom: 1.4rem; overflow-wrap: anywhere }
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: .6rem 1.4rem; margin: 0 0 1rem; font-size: .9rem }
.bar p { margin: 0; flex: 1 1 20rem }
button, select { font: inherit; color: inherit; background: var(--raised); border: 1px solid var(--edge);
  border-radius: .4rem }
button { padding: .45rem .8rem; cursor: pointer }
button:hover, select:hover { border-color: var(--accent) }
button[aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 0 0 1px var(--accent); font-weight: 600 }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px }
select { width: 100%; padding: .45rem .5rem; text-overflow: ellipsis }
input[type=range] { width: 8rem; accent-color: var(--accent); vertical-align: middle }
.panels { display: grid; grid-template-columns: 1fr; gap: 2.5rem }
.panels.two { grid-template-columns: 1fr 1fr }
.panel { display: grid; grid-template-columns: minmax(0, 27rem) minmax(0, 1fr); gap: 1.2rem 2.2rem;
  align-items: start; align-content: start }
.panels.two .panel { grid-template-columns: minmax(0, 1fr) }
.pick { grid-column: 1 / -1; display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  gap: .6rem 1rem }
.pick label { font-size: .82rem; color: var(--soft) }
.pick select { display: block; margin-top: .15rem; font-size: .95rem; color: var(--ink) }
.stage { position: relative; width: 100%; overflow: hidden; border-radius: .5rem; background: #111; cursor: crosshair;
  touch-action: manipulation; user-select: none; -webkit-user-select: none }
.stage img { display: block; width: 100%; height: 100%; filter: grayscale(var(--light, .85)) }
.stage canvas { position: absolute; inset: 0; width: 100%; height: 100%; pointer-events: none }
.crisp { image-rendering: pixelated }
.here { position: absolute; pointer-events: none; border: 2px solid #fff; outline: 1.5px solid #000;
  box-shadow: 0 0 0 3px rgb(255 255 255 / .35) }
.scale { display: flex; align-items: center; gap: .6rem; margin: .55rem 0 .5rem; font-size: .82rem; color: var(--soft);
  font-variant-numeric: tabular-nums }
.scale i { flex: 1; height: .55rem; border-radius: .3rem }
.tokens { display: flex; flex-wrap: wrap; gap: .4rem; margin: 0 0 .6rem }
.tokens button { padding: .3rem .65rem; font-size: .85rem }
.said { min-height: 4.4em; margin: 0; font-size: .92rem; color: var(--ink); font-variant-numeric: tabular-nums }
.beside { display: grid; gap: 1.4rem; min-width: 0 }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); gap: 1.4rem 2.2rem }
.facts > div { min-width: 0; overflow-x: auto }
.answers { display: grid; grid-template-columns: 1fr; gap: .3rem; margin: 0; padding: 0; list-style: none;
  font-size: .9rem }
.answers li { position: relative; display: flex; justify-content: space-between; gap: 1rem; padding: .2rem .5rem;
  border-radius: .3rem; background: linear-gradient(color-mix(in srgb, var(--one) 26%, transparent) 0 0) no-repeat
  left / calc(var(--share) * 100%) 100%, var(--raised); font-variant-numeric: tabular-nums }
.answers li > span:first-child { overflow-wrap: anywhere }
.answers .asked { font-weight: 600 }
.scores { font-size: .87rem }
.scores th, .scores td { padding: .22rem .9rem .22rem 0 }
.scores button { padding: 0; border: 0; background: none; color: var(--accent); text-align: left }
.scores button:hover { text-decoration: underline }
.scores .now th::before { content: "\\25B8\\00A0"; color: var(--two) }
.scores .best { font-weight: 700 }
.scores .base th, .scores .base td { color: var(--soft) }
.note { margin: .4rem 0 0; font-size: .82rem; color: var(--soft) }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(3rem, 1fr)); gap: .3rem }
.strip button { display: block; padding: .16rem; font-size: .74rem; line-height: 1.2; text-align: center;
  border-radius: .35rem; font-variant-numeric: tabular-nums }
.strip canvas { display: block; width: 100%; margin-bottom: .12rem; border-radius: .2rem; background: #000 }
[hidden] { display: none !important }
section > .wide { max-width: 34rem }
details { margin: 1rem 0 0 }
summary { cursor: pointer; color: var(--accent); font-size: .95rem }
details > :not(summary) { margin-top: .8rem }
pre { margin: 0; padding: .9rem 1.1rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .5rem;
  background: var(--raised); font: .85rem/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace }
dl.models { grid-template-columns: max-content 1fr }
dl.models dt { overflow-wrap: anywhere }
@media (max-width: 56rem) {
  .panel { grid-template-columns: minmax(0, 1fr) }
  .stage { margin: 0 auto }
}
@media (max-width: 48rem) {
  body { padding: 1.6rem 1rem 3rem }
  .panels.two { grid-template-columns: 1fr; gap: 2rem }
  .panels.two .panel + .panel { padding-top: 2rem; border-top: 1px solid var(--line) }
  button, select { min-height: 2.75rem }
  .scores button { min-height: 2rem }
  .tokens button { min-height: 2.4rem }
  .pick { grid-template-columns: 1fr 1fr }
  .pick label:first-child:last-child, .pick label:nth-child(3) { grid-column: 1 / -1 }
  dl.models { grid-template-columns: 1fr; gap: .1rem }
  th, td { padding-right: .8rem }
}
@media (prefers-reduced-motion: no-preference) { .stage canvas { transition: opacity .15s } }
""".strip()
