"""The dashboard in real Chromium over a made-up run: every page, every click path, the address bar, exports, live growth, escaping.

Every string of the run that a model or an environment could write holds a script: `window.hacked` must stay unset."""
import os, shutil, socket, sys, time
from pathlib import Path
import pytest
sys.path.insert(0, str(Path(__file__).parent))

BROWSER = os.environ.get('BROWSER_PATH') or next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
pytest.importorskip('panel', reason='panel is not installed: the dash extra'); sync = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
pytestmark = pytest.mark.skipif(BROWSER is None, reason='no Chromium here (apt-get install chromium)')
WAIT = 180_000
PAGES = ('overview', 'properties', 'profiles', 'training', 'router', 'outcomes', 'trajectory', 'compare')


@pytest.fixture(scope='module')
def server(tmp_path_factory):
    import fakerun
    from harness_s.dash.app import serve
    d = tmp_path_factory.mktemp('dash'); a, b = fakerun.make_run(d/'demo', updates=6), fakerun.make_run(d/'other', seed=1, updates=2, gain=.2, status='running')
    twin = fakerun.make_run(d/'twin', seed=2, updates=3, lr=3e-4)                      # another seed of demo's settings
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    thread = serve([a.path, b.path, twin.path], port=port, threaded=True)
    for _ in range(200):
        with socket.socket() as s:
            if s.connect_ex(('127.0.0.1', port)) == 0: break
        time.sleep(.1)
    yield f'http://127.0.0.1:{port}', a, b
    thread.stop()


@pytest.fixture(scope='module')
def browser():
    with sync.sync_playwright() as p:
        b = p.chromium.launch(executable_path=BROWSER, args=['--no-sandbox'])
        yield b
        b.close()


@pytest.fixture
def tab(browser):
    "Makes tabs of 1280 x 800 that fail the test on console errors, outside requests and executed text."
    tabs, bad = [], []
    def new():
        pg = browser.new_page(viewport=dict(width=1280, height=800)); tabs.append(pg)
        pg.set_default_timeout(WAIT)
        pg.on('console', lambda m: bad.append(m.text) if m.type == 'error' else None); pg.on('pageerror', lambda e: bad.append(str(e)))
        pg.on('request', lambda r: bad.append('outside: ' + r.url) if '127.0.0.1' not in r.url and not r.url.startswith(('data:', 'blob:')) else None)
        return pg
    yield new
    hacked = []
    for pg in tabs:                                       # closed whatever comes, or they would go on looking at their runs in later tests
        if pg.is_closed(): continue
        hacked.append(pg.evaluate('window.hacked')); pg.close()
    assert not bad, bad
    assert not any(hacked), hacked


@pytest.fixture
def page(tab): return tab()


def go(tab, server, **query):
    tab.goto(server[0] + '/?' + '&'.join(f'{k}={v}' for k, v in query.items()))
    tab.wait_for_selector(".stamp")


def inner(page, n): return ' '.join(page.locator('.trajectory').nth(n).locator('.hs').inner_text().split())
def wait_url(page, part): page.wait_for_function('p => decodeURIComponent(location.search).includes(p)', arg=part)


SEES = dict(overview='How rollouts ended', properties='Nonstationarity', profiles='Lineage of the pool', training='Effective token share', router='Ballots of one task', outcomes='Outcomes: tasks by harnesses', trajectory='Outcomes of', compare='Settings that differ')

@pytest.mark.parametrize('name', PAGES)
def test_page_renders(page, server, name):
    go(page, server, page=name)
    page.get_by_text(SEES[name]).first.wait_for()
    for what in ('seed 0', 'abc1234'): page.locator('.stamp').get_by_text(what).wait_for()
    if name != 'trajectory': page.locator('.js-plotly-plot .main-svg').first.wait_for(state='attached')
    over = page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth')
    assert over <= 1, f'the page is {over} pixels wider than 1280'


@pytest.mark.parametrize('name, text', [('overview', 'How rollouts ended'), ('training', 'effective groups')])
def test_text_is_there_before_any_script(browser, server, name, text):
    "A browser that runs none shows the page's text; one that does shows it once."
    context = browser.new_context(java_script_enabled=False)
    try: bare = context.new_page(); bare.goto(f'{server[0]}/?page={name}'); bare.get_by_text(text, exact=True).wait_for(timeout=20_000)
    finally: context.close()


def test_text_gives_way_to_the_live_page(page, server):
    go(page, server, page='overview'); page.locator('.fig-costs .main-svg').first.wait_for(state='attached')
    assert page.get_by_text('How rollouts ended').count() == 1 and page.locator('#first').count() == 0


def test_figures_come_after_the_text_and_not_to_another_page(page, server):
    go(page, server, page='overview'); page.locator('.fig-costs .main-svg').first.wait_for(state='attached')
    page.evaluate("""() => { window.seen = []; const deep = (n, q) => [...n.querySelectorAll(q), ...[...n.querySelectorAll('*')].flatMap(m => m.shadowRoot ? deep(m.shadowRoot, q) : [])]
      const look = () => { if (deep(document.body, 'h3').some(h => h.textContent == 'Learning signals')) window.seen.push(deep(document.body, '[class*="fig-"]').length); if (window.seen.length < 2000) requestAnimationFrame(look) }; look() }""")
    page.locator('.nav-training button').click(); page.locator('.fig-rollouts .main-svg').first.wait_for(state='attached')
    seen = page.evaluate('window.seen'); assert seen[0] == 0 and seen[-1] >= 6, seen
    page.locator('.nav-outcomes button').click(); page.locator('.nav-training button').click(); page.get_by_text('Learning signals').wait_for(); page.locator('.nav-overview button').click()
    page.locator('.fig-costs .main-svg').first.wait_for(state='attached'); page.wait_for_timeout(1500)
    assert page.locator('.js-plotly-plot').count() == 2


def test_keyboard(page, server):
    go(page, server, page='overview')
    page.locator('.nav-training button').focus(); page.keyboard.press('Enter')
    wait_url(page, 'page=training'); page.get_by_text('Learning signals').wait_for()
    page.locator('.nav-training button').focus(); page.keyboard.press('Tab'); page.keyboard.press('Enter')
    wait_url(page, 'page=router')


def click(page, what, x=.5, y=.5):
    "A click at a place inside an element of a plot; plotly wants the pointer there first."
    what.wait_for(state='attached'); page.wait_for_timeout(300)
    what.scroll_into_view_if_needed(); box = what.bounding_box()
    page.mouse.move(box['x'] + box['width'] * x, box['y'] + box['height'] * y); page.wait_for_timeout(400)
    page.mouse.down(); page.mouse.up()


def test_locality_click_lists_tasks_and_opens_them(page, server):
    go(page, server, page='properties')
    click(page, page.locator('.fig-locality .barlayer .point path').nth(7), .9)
    page.get_by_text('tasks against H0').wait_for()
    page.locator('.tasks-behind').get_by_text('repaired').first.wait_for()
    page.get_by_role('button', name='Open its trajectories').click()
    wait_url(page, 'page=trajectory'); page.locator('.trajectory').nth(1).get_by_text('policy (assistant)').first.wait_for()
    assert page.locator('.trajectory').count() == 2 and 'H0' in inner(page, 1)


def test_matrix_click_opens_the_trajectory(page, server):
    go(page, server, page='outcomes')
    click(page, page.locator('.fig-outcome_matrix .heatmaplayer image'), 5.5 / 9, .5 / 24)
    wait_url(page, 'page=trajectory')
    page.locator('.trajectory').first.get_by_text('policy (assistant)').first.wait_for()
    assert 'under S5' in inner(page, 0)


def test_trajectory_pages_tokens_and_raw(page, server):
    run = server[1].scan('rollouts').filter(__import__('polars').col('unit') == 'train-top8_adaptive-00003-first').collect()
    go(page, server, page='trajectory', traj=run['id'][0])
    t = page.locator('.trajectory').first; t.get_by_text('final state').first.wait_for()
    assert all(x in inner(page, 0) for x in ('hook paging', '<script>', 'list(app=songs, page=0)'))
    page.get_by_label('from', exact=True).fill('5'); page.get_by_label('from', exact=True).press('Enter')
    t.get_by_text('#4 policy').wait_for(state='detached'); assert '#5 environment' in inner(page, 0); wait_url(page, 'at=5')
    page.locator('.raw input').check(); wait_url(page, 'raw=true'); t.get_by_text('"song 1; more pages').wait_for()
    page.get_by_role('button', name='tokens', exact=True).click(); t.locator('.tok').first.wait_for()
    assert t.locator('.tok').count() == 42 and t.locator('.tok.ctx').count() == 24
    assert 'logprob' in t.locator('.tok:not(.ctx)').first.get_attribute('title') and ('Eq. 6' in inner(page, 0) or 'carries no loss' in inner(page, 0))


def test_paging_buttons(page, server):
    go(page, server, page='trajectory')
    page.locator('.trajectory').first.get_by_text('#7').wait_for()
    page.get_by_label('events a page').select_option('25')
    page.get_by_role('button', name='Next').click(); page.wait_for_timeout(300)
    assert '#7' in inner(page, 0)                     # 8 events fit one page: Next does not leave it


def test_lineage_click_selects_the_sibling(page, server):
    go(page, server, page='profiles')
    page.get_by_text('Against H0, its parent').wait_for(); page.locator('.fig-lineage .scatterlayer .points path').last.wait_for()
    for _ in range(5):                                                                 # the figure may be laid out again while it is clicked
        click(page, page.locator('.fig-lineage .scatterlayer .points path').last); page.wait_for_timeout(1500)
        if 'harness=h' in page.url: break
    wait_url(page, 'harness=h')
    page.get_by_label('anchor').select_option('top8_adaptive-10'); wait_url(page, 'anchor=top8_adaptive-10'); page.get_by_text('(before: 0)').wait_for()


def test_seeds_are_overlaid_with_intervals(page, server):
    go(page, server, page='training')
    page.get_by_text('2 seed(s), band: both seeds').first.wait_for()                  # demo and twin; other has another learning rate
    page.get_by_role('button', name='this run', exact=True).click(); wait_url(page, 'seeds=false'); page.get_by_text('1 seed(s)').first.wait_for()
    page.get_by_role('button', name='each update').click(); wait_url(page, 'every=1'); page.get_by_text('Every 1 update(s)').first.wait_for()
    go(page, server, page='training', every=1); page.get_by_text('Every 1 update(s); 2 seed(s)').first.wait_for()
    go(page, server, page='training', run='other'); page.get_by_text('1 seed(s)').first.wait_for(); assert 'band: both' not in page.content()


def test_ballots_show_what_the_voters_knew(page, server):
    go(page, server, page='router', task='test-lookup-0')
    page.get_by_text('What was known at calibration top8_adaptive-20').wait_for()
    page.get_by_text('Nearest validation tasks').first.wait_for(); page.get_by_text('val-lookup-0').first.wait_for()
    page.get_by_label('task', exact=True).select_option('train-paging-0'); wait_url(page, 'task=train-paging-0'); page.get_by_text('rescue, update 4').wait_for()


def test_ranks_by_checkpoint(page, server):
    go(page, server, page='properties'); page.get_by_text('Ranks by checkpoint').wait_for(); page.get_by_text('step 20', exact=True).wait_for()


def test_link_opens_the_same_view(page, server):
    go(page, server, run='other', page='compare', base='other / base / h0', other='other / grpo / h0')
    page.get_by_text('Tasks that differ').wait_for()
    page.locator('.stamp').get_by_text('seed 1').wait_for()
    assert page.get_by_label('baseline').input_value() == 'other / base / h0' and page.get_by_label('other', exact=True).input_value() == 'other / grpo / h0'


def test_compare_runs_and_switch(page, server):
    go(page, server, page='compare', base='demo / grpo / h0', other='other / grpo / h0')
    page.get_by_text('train.lr').wait_for()                                            # only settings that differ are listed
    assert 'evaluate.rollouts' not in page.content()
    page.get_by_label('run', exact=True).select_option('other'); wait_url(page, 'run=other'); page.wait_for_function("() => true"); page.locator('.stamp').get_by_text('seed 1').wait_for()


def test_exports(page, server):
    go(page, server, page='overview')
    page.wait_for_selector('.js-plotly-plot .main-svg')
    with page.expect_download() as d: page.get_by_text('CSV', exact=True).first.click()
    got = Path(d.value.path()).read_text(); assert d.value.suggested_filename == 'main_results.csv' and got.startswith('arm,label,step') and 'top8_adaptive,rank1' in got
    with page.expect_download() as d: page.get_by_text('HTML', exact=True).first.click()
    assert 'plotly' in Path(d.value.path()).read_text()[:6_000_000]
    link = page.get_by_text('CSV', exact=True).first.get_attribute('href'); secret = link.split('/')[1]
    status = lambda path: page.request.get(f'{server[0]}/{path}').status
    assert (status(link), status(link.replace(secret, 'guess')), status(link + '.txt'), status(f'export/{secret}/..%2Fmain_results.csv')) == (200, 404, 404, 404)


def grow(store, unit, n=24):
    "Write `n` more rollouts as part `unit`."
    import fakerun
    h0 = fakerun.pool_of()[0]; ts = fakerun.tasks('train')[:n]
    store.save_trajectories(unit, [fakerun.trajectory(t, h0, 0, (unit,), .5) for t in ts], tasks={t.id: t for t in ts}, stage='train', arm='grpo', step=99, phase='first')


def shown(pg, store):
    "Wait until the tab's stamp counts every rollout of the store."
    n = len(store.scan('rollouts').select('id').collect()); pg.locator('.stamp').get_by_text(f'{n:,} rollouts').wait_for()


def test_live_run_grows_in_every_tab(tab, server):
    "Tabs share what was read of a run: whichever of them reads a new part, all draw it, also one that was only just opened."
    from harness_s.dash.data import open_run
    store, old = server[2], tab(); go(old, server, page='overview', run='other'); shown(old, store)
    new = tab(); go(new, server, page='training', run='other'); shown(new, store)
    grow(store, 'train-grpo-00097-first')
    for pg in (old, new): shown(pg, store)
    last = tab(); go(last, server, page='overview', run='other')
    grow(store, 'train-grpo-00098-first'); assert open_run(store.path).refresh()          # read for another session before this tab looked for the first time
    for pg in (last, new, old): shown(pg, store)


def test_end_of_a_live_run_is_shown(page, server):
    "The last parts may come together with the end."
    store = server[2]; go(page, server, page='overview', run='other'); shown(page, store)
    try:
        grow(store, 'train-grpo-00099-first'); store.update(status='done')
        shown(page, store); page.locator('.stamp').get_by_text('done').wait_for()
    finally: store.update(status='running')


def test_closed_tab_looks_at_nothing(tab, server, monkeypatch):
    from harness_s.dash.data import LiveRun
    looks, refresh = [], LiveRun.refresh
    monkeypatch.setattr(LiveRun, 'refresh', lambda self: (looks.append(self.path.name), refresh(self))[1])
    pg = tab(); go(pg, server, page='overview', run='other')
    end = time.time() + 60
    while not looks and time.time() < end: pg.wait_for_timeout(200)
    assert looks, 'an open tab looks at its run'
    pg.close(); time.sleep(2); looks.clear(); time.sleep(9)
    assert not looks, 'sessions of closed tabs went on looking'


def test_only_its_own_origin(server):
    host, port = '127.0.0.1', int(server[0].rsplit(':', 1)[1])
    def answer(origin):
        with socket.create_connection((host, port), 20) as s:
            s.sendall((f'GET /ws?bokeh-protocol-version=1.0 HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nOrigin: {origin}\r\n\r\n').encode())
            return int(s.recv(64).split()[1])
    assert answer('http://evil.example') == 403 != answer(server[0])
