"DBBench: grading, the SQL fence, bad input, and the replay of the real records (where the file is at hand)."
import datetime, json, os, resource, time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
import pytest
from harness_s.bench.answers import grade_answer, read_answer
from harness_s.bench.base import check, get_benchmark, play
from harness_s.bench.dbbench import DBBench, check_dbbench, shared_with_test
from harness_s.bench.dbways import CATALOGUE, siblings
from harness_s.bench.dbsql import SqlLimits, SqliteEngine, published_hash, same_content
from harness_s.bench.mysqlish import translate
from harness_s.core import Task, ToolCall, Trajectory, Turn, UserError, Verdict
from harness_s.harness import load_harness

HERE = Path(__file__).resolve().parent.parent
DATA = next((p for p in (os.environ.get('HARNESS_S_DBBENCH'), HERE.parent/'shared/data/dbbench/standard.jsonl') if p and Path(p).is_file()), None)
needs_data = pytest.mark.skipif(DATA is None, reason='the DBBench file is not here: set HARNESS_S_DBBENCH to it')

def sql(q): return ToolCall(name='execute_sql', args={'query': q})
def commit(a): return ToolCall(name='commit_answer', args={'answer': a})

def record(kind='other', label=('Cuba',), **more):
    return {'description': 'Which nation won 4 gold medals?', 'add_description': '', 'label': list(label), 'type': [kind],
            'table': {'table_name': 'Medals', 'table_info': {'columns': [{'name': 'Nation', 'type': 'TEXT'}, {'name': 'Gold', 'type': 'INT'}], 'rows': [['Cuba', '4'], ['Chad', '10'], ['Peru', None]]}}, **more}

@pytest.fixture
def bench(tmp_path):
    def make(*records, **kw):
        p = tmp_path/'records.jsonl'; p.write_text('\n'.join(map(json.dumps, records)))
        return DBBench(p, **{'train': 20, 'val': 10, **kw})
    return make

# ---- answers (report R1) ----
@pytest.mark.parametrize('answer, gold', [
    ('null', '0'), ('', '0'), ('nan', '0'), ('inf', '0'), ('-inf', '0'), (None, '0'), ('null', 0), ('', 0), (float('nan'), 0), (float('inf'), 0),
    ('[(9, 9)]', '[(1, 2)]'), ([(9, 9)], [(1, 2)]), ('[]', '[(3, 4)]'), ([], [(3, 4)]), ('5%', '5'), ('5', '5%'), ('1,2', '12'), ('12', '1,2'), ('1,2', ['12']),
    (['a', 'a', 'b'], ['a', 'b']), (['a', 'b'], ['a', 'a', 'b']), ("['a', 'a', 'b']", "['a', 'b']"), ('a\na\nb', ['a', 'b']),
    ('0.3', '0.3333'), ('0.34', '0.3333'), ('16001', '16000'), ('100', '100.5'), ('Paris, France', 'Paris'), ('[(2, 1)]', '[(1, 2)]'), ('0', ''), ('False', '0'), ('$5', '€5')])
def test_wrong_answers(answer, gold): assert not grade_answer(answer, gold)

@pytest.mark.parametrize('answer, gold', [
    ('Paris', 'paris'), ('  paris ', ['Paris']), ('$1,000', '1000'), ('1000', '$1,000'), ('5', "[(Decimal('5.00'),)]"), (5, [(Decimal('5.00'),)]), ('5.0', '5'),
    ('2020-01-02', '[(datetime.date(2020, 1, 2),)]'), ('2020-01-02', datetime.date(2020, 1, 2)), ('2020-01-02', [(datetime.datetime(2020, 1, 2),)]),
    ('0.333', '0.3333'), (['b', 'a'], ['a', 'b']), ("[('a',), ('b',)]", ['b', 'a']), ('5 %', '5%'), ('none', None), ('"House of Cards"', 'House of cards')])
def test_right_answers(answer, gold): assert grade_answer(answer, gold)

def test_the_tolerance_is_a_parameter():
    assert grade_answer('0.333', '0.3333') and not grade_answer('0.333', '0.3333', tolerance=0) and grade_answer('0.3333', '0.3333', tolerance=0)
    assert not grade_answer('999', '1000', tolerance=.5)                     # whole numbers are never approximate

@pytest.mark.parametrize('text', ["__import__('os').system('touch /tmp/hs_pwned')", "[().__class__.__base__.__subclasses__()]", '[' * 3000, '[' + '9' * 19_000 + ']', '(lambda: 1)()', "[Decimal(open('x'))]", "[1 for _ in range(10**9)]"])
def test_answers_are_never_evaluated(text):
    t = time.process_time(); assert not grade_answer(text, '1'); read_answer(text)
    assert time.process_time() - t < 2 and not os.path.exists('/tmp/hs_pwned')

# ---- contents (report R2) ----
def test_order_null_and_number_text_do_not_decide(bench):
    b = bench(record('INSERT', ["INSERT INTO Medals (Nation, Gold) VALUES ('Fiji', 7)"], description='Add Fiji with 7.'), record('INSERT', ["INSERT INTO Medals VALUES ('Fiji', '')"], description='Add Fiji.'))
    one, two = b.tasks('test')
    for good in ("INSERT INTO Medals VALUES ('Fiji', '7')", "INSERT INTO Medals VALUES ('Fiji', 7.0)", 'INSERT INTO Medals SET Nation = "Fiji", Gold = 7'): assert play(b, one, [sql(good)]).outcome == 'pass', good
    assert play(b, one, [sql("DELETE FROM Medals"), sql("INSERT INTO Medals VALUES ('Fiji', 7), ('Peru', NULL), ('Chad', 10), ('Cuba', '4')")]).outcome == 'pass'
    assert play(b, two, [sql("INSERT INTO Medals (Nation) VALUES ('Fiji')")]).outcome == 'pass'
    for bad in ("INSERT INTO Medals VALUES ('fiji', 7)", "INSERT INTO Medals VALUES ('Fiji', 70)", "INSERT INTO Medals VALUES ('Fiji', 7), ('Fiji', 7)", "INSERT INTO Medals VALUES (7, 'Fiji')", 'DROP TABLE Medals', 'ALTER TABLE Medals ADD COLUMN x TEXT', 'SELECT 1'):
        assert play(b, one, [sql(bad), commit('done')]).outcome == 'fail', bad

def test_a_swapped_null_is_seen_where_the_published_hash_is_blind():
    a, b = [('x', None)], [(None, 'x')]
    assert published_hash(a) == published_hash(b) and same_content((['p', 'q'], a), (['p', 'q'], b))

# ---- the fence ----
ESCAPES = ["ATTACH DATABASE '{f}' AS o", "SELECT 1; ATTACH '{f}' AS o", "/*!40000 ATTACH '{f}' AS o */", "VACUUM INTO '{f}'", "PRAGMA writable_schema = 1", "PRAGMA journal_mode = WAL", "SELECT * FROM pragma_database_list",
           "SELECT load_extension('/lib/x.so')", "SELECT readfile('/etc/passwd')", "SELECT writefile('{f}', 'x')", "SELECT LOAD_FILE('/etc/passwd')", "LOAD DATA INFILE '/etc/passwd' INTO TABLE Medals", "SELECT * INTO OUTFILE '{f}' FROM Medals",
           "CREATE VIRTUAL TABLE v USING fts5(x)", "SELECT fts3_tokenizer('simple')", "CREATE TRIGGER t AFTER INSERT ON Medals BEGIN DELETE FROM Medals; END", "DETACH main", "BEGIN", "COMMIT", "SET GLOBAL x = 1",
           "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 1, 'x')", "UPDATE sqlite_master SET sql = 'x'", "WITH x AS (SELECT 1) SELECT * FROM dbstat", "EXPLAIN SELECT 1", "ANALYZE", "GRANT ALL ON *.* TO x"]

@pytest.mark.parametrize('q', ESCAPES)
def test_nothing_leaves_the_database(q, tmp_path):
    f = tmp_path/'out.db'; e = SqliteEngine({'table': 'Medals', 'columns': ['Nation', 'Gold'], 'rows': [['Cuba', '4']]})
    before = e.content('Medals'); got = e.execute(q.format(f=f))
    assert got.error and not f.exists() and e.content('Medals') == before and [r[1] for r in e.con.execute("SELECT * FROM sqlite_master").fetchall()] == ['Medals']

@pytest.mark.parametrize('q', ['WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c', "SELECT hex(zeroblob(900000000))", "SELECT REPLACE(PRINTF('%.900000000d', 1), '0', 'aaaa')", "SELECT '" + 'a' * 4000 + "' REGEXP '(a|aa)+$b'",
                               'SELECT COUNT(*) FROM Medals a, Medals b, Medals c, Medals d, Medals e, Medals f, Medals g, Medals h, Medals i, Medals j, Medals k, Medals l, Medals m',
                               "WITH RECURSIVE c(x) AS (SELECT HEX(PRINTF('%.400000d', 1)) UNION ALL SELECT x || '' FROM c) SELECT x FROM c ORDER BY x", 'SELECT ' + '(' * 300 + '1' + ')' * 300, 'SELECT ' + '(SELECT ' * 60 + '1' + ')' * 60])
def test_runaway_statements_end(q):
    e = SqliteEngine({'table': 'Medals', 'columns': ['n'], 'rows': [[str(i)] for i in range(9)]}, SqlLimits(seconds=.3))
    t, rss = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    e.execute(q)
    assert time.process_time() - t < 6 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 2_000_000
    assert e.execute('SELECT COUNT(*) FROM Medals').rows == [(9,)]            # still usable

def test_a_table_cannot_outgrow_its_limit():
    e = SqliteEngine({'table': 't', 'columns': ['a'], 'rows': [['x' * 1000]]}, SqlLimits(db_bytes=2_000_000))
    errors = [r.error for _ in range(16) if (r := e.execute('INSERT INTO t SELECT a FROM t')).error]
    assert errors and 'full' in errors[0] and len(e.content('t')[1]) < 3000

def test_output_is_bounded(bench):
    b = bench(record(), limits=SqlLimits(chars=500)); env = b.env(b.tasks('test')[0])
    got = env.call(sql('WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9000) SELECT x, x FROM c'))
    assert len(got.text) < 700 and got.more and not got.error

def test_many_databases_in_threads_do_not_disturb_each_other(bench):
    b = bench(record('UPDATE', ["UPDATE Medals SET Gold = 5 WHERE Nation = 'Cuba'"])); t = b.tasks('test')[0]
    def one(i): return play(b, t, [sql(f"UPDATE Medals SET Gold = {5 if i % 2 else 6} WHERE Nation = 'Cuba'")]).outcome
    with ThreadPoolExecutor(8) as ex: assert list(ex.map(one, range(64))) == ['pass' if i % 2 else 'fail' for i in range(64)]

# ---- MySQL's manners ----
@pytest.mark.parametrize('q, want', [
    ('SELECT COUNT(*) FROM `1st table` WHERE `Won %` > 9', 2), ("SELECT COUNT(*) FROM `1st table` WHERE `Won %` IN (10, 4)", 2), ('SELECT COUNT(*) FROM `1st table` WHERE `Won %` BETWEEN 5 AND 50', 1),
    ('SELECT MAX(`Won %` + 0) FROM `1st table`', 100.5), ('SELECT city FROM `1st table` ORDER BY `Won %` + 0 DESC LIMIT 1', 'Malmö'), ('SELECT COUNT(*) FROM `1st table` WHERE LOWER(City) = "malmo"', 1),
    ("SELECT COUNT(*) FROM `1st table` WHERE City LIKE '%L%'", 3), ('SELECT 7 / 2', 3.5), ("SELECT CONCAT(City, '!') FROM `1st table` WHERE City = 'LIMA'", 'Lima!'), ("SELECT 'a\\'b'", "a'b"),
    ('SELECT "x" = "X"', 1), ('SELECT COUNT(*) FROM `1st table` WHERE (SELECT MAX(`Won %` + 0) FROM `1st table`) = `Won %`', 1), ("SELECT SUBSTRING_INDEX('a b c', ' ', -1)", 'c'),
    ("SELECT IF(`Won %` > 9, 'hi', 'lo') FROM `1st table` WHERE City = 'Lima'", 'lo'), ("SELECT COUNT(*) FROM `1st table` WHERE City REGEXP '^m'", 1), ("SELECT LEFT(City, 2) FROM `1st table` WHERE `Won %` = 4", 'Li'),
    ('SELECT COUNT(*) FROM `1st table` HAVING COUNT(*) > 2', 3), ("SELECT CAST('5.7' AS DECIMAL(10, 1))", 5.7), ("SELECT YEAR('1993-12-09')", 1993), ('SELECT COUNT(DISTINCT City) FROM `1st table`', 3)])
def test_mysql_meaning(q, want):
    e = SqliteEngine({'table': '1st table', 'columns': ['City', 'Won %'], 'rows': [['Lima', '4'], ['Malmö', '100.5'], ['Delhi', '10.0']]})
    got = e.execute(q); assert not got.error, (got.error, translate(q))
    assert got.rows[0][0] == want, (got.rows, translate(q))

def test_headings_order_and_groups_of_computed_text():
    e = SqliteEngine({'table': 't', 'columns': ['a', 'n'], 'rows': [['Beta', '1'], ['alpha', '2'], ['ALPHA', '10'], ['–', '3']]})
    got = e.execute('SELECT UPPER(a), n * 2, COUNT(*) FROM t GROUP BY a ORDER BY 1'); assert got.columns == ['UPPER(a)', 'n * 2', 'COUNT(*)']
    assert [r[0] for r in e.execute('SELECT LEFT(a, 1) FROM t ORDER BY 1').rows] == ['–', 'a', 'A', 'B'] == [r[0] for r in e.execute('SELECT LEFT(a, 1) AS x FROM t ORDER BY x').rows]
    assert [r[1] for r in e.execute('SELECT LEFT(a, 1) AS x, COUNT(*) FROM t GROUP BY x ORDER BY COUNT(*) DESC, x').rows] == [2, 1, 1] and [r[0] for r in e.execute('SELECT n + 0 AS x FROM t ORDER BY x DESC').rows] == [10, 3, 2, 1]

@pytest.mark.parametrize('q, want', [('UPDATE t SET a = a + 1', '6'), ('UPDATE t SET a = 2.50', '2.50'), ('UPDATE t SET a = -18', '-18'), ('UPDATE t SET a = a * 1.5 LIMIT 1', '7.5'), ('UPDATE t SET a = "x\\\\y"', 'x\\y'), ('UPDATE t SET a = .5', '0.5'), ('UPDATE t SET a = NULL', None), ("REPLACE INTO t VALUES ('z')", '5'), ('UPDATE t SET a = a / 2', '2.5')])
def test_what_is_stored(q, want):
    e = SqliteEngine({'table': 't', 'columns': ['a'], 'rows': [['5']]}); r = e.execute(q)
    assert not r.error and e.content('t')[1][0] == (want,), (r, translate(q))

# ---- gold stays away ----
def test_gold_is_in_no_task_observation_or_verdict(bench):
    b = bench(record(label=['Zanzibar']), record('UPDATE', ["UPDATE Medals SET Gold = 98765 WHERE Nation = 'Cuba'"], answer_md5="[('0cc175b9c0f1b6a831c399e269772661',)]", description='Set it.'), record('UPDATE', ["UPDATE Medals SET Gold = 98765 WHERE Nation = 'Cuba'"], description='Set Cuba.'))
    assert list(b.excluded) == ['dbbench-001'] and 'published hash' in b.excluded['dbbench-001']
    for t in b.tasks('test'):
        v = play(b, t, [sql('SELECT * FROM sqlite_master'), sql('UPDATE Medals SET Gold = 1'), commit('x')]); env = b.env(t)
        seen = t.model_dump_json() + v.model_dump_json() + ''.join(env.call(sql(q)).text for q in ('SELECT * FROM Medals', 'SHOW TABLES', 'SELECT * FROM sqlite_master'))
        assert 'zanzibar' not in seen.lower() and '98765' not in seen and v.outcome == 'fail'

def test_features_do_not_read_the_gold_or_the_label(bench):
    a, b = (bench(record(kind, label)) for kind, label in (('other', ['Cuba']), ('ranking', ['Peru'])))
    assert a.features(a.tasks('test')[0]) == b.features(b.tasks('test')[0]) == ['lookup', 'narrow']

def test_agent_faults_are_observations(bench):
    b = bench(record()); t = b.tasks('test')[0]; env = b.env(t); env.reset(t)
    for c in (ToolCall(name='rm'), ToolCall(name='execute_sql'), sql(None), sql(5), sql({'a': 1}), sql(''), sql('\0'), sql('\ud800'), ToolCall(name='commit_answer', args={})): assert env.call(c).error
    assert not env.done and env.verify().outcome == 'fail'
    assert env.call(commit({'x': [1, {'y': 2}]})).text and env.done and env.call(sql('SELECT 1')).error and env.verify().outcome == 'fail'
    env.close(); env.close()

# ---- bad input ----
def test_bad_input_is_one_clear_sentence(tmp_path, monkeypatch):
    p = tmp_path/'r.jsonl'; p.write_text(json.dumps(record()) + '\n{"description": "x", \n')
    with pytest.raises(UserError, match=r'r\.jsonl line 2: not valid JSON .* remove that line'): DBBench(p)
    p.write_text(json.dumps({**record(), 'table': {'table_name': 'x', 'table_info': {'columns': [{'name': 'a'}], 'rows': [[1, 2]]}}}))
    with pytest.raises(UserError, match='line 1: .*lists of 1 values'): DBBench(p)
    monkeypatch.delenv('HARNESS_S_DBBENCH', raising=False)
    with pytest.raises(UserError, match='HARNESS_S_DBBENCH'): get_benchmark('dbbench').check()
    assert len(get_benchmark('dbbench', train=3).tasks('train')) == 3          # generated tasks need no file
    with pytest.raises(UserError, match='there is no file .*HARNESS_S_DBBENCH'): get_benchmark('dbbench', data=str(tmp_path/'none.jsonl'))
    p.write_text('')
    with pytest.raises(UserError, match='no records'): DBBench(p)

def test_a_gold_that_does_nothing_is_excluded(bench):
    b = bench(record(), record('UPDATE', ["UPDATE Medals SET Gold = 4 WHERE Nation = 'Cuba'"]), record('INSERT', ['INSERT INTO Nowhere VALUES (1)']))
    assert {k: v.split(': ')[1] for k, v in b.excluded.items()} == {'dbbench-001': 'its gold statement changes nothing', 'dbbench-002': 'its gold statement fails'}
    got = b.check(); assert got['gold_rate'] == 100 and got['null_rate'] == 0 and got['n']['test'] == 1 and got['null_agent_pass'] == 0

# ---- harnesses, mechanisms, diagnosis ----
def test_every_mechanism_makes_a_valid_harness(bench):
    h0 = bench(record()).base_harness(); ids = {h0.id} | {h.id for h in siblings().values()}
    for m in CATALOGUE:
        state = h0.state(); state[m.component] = {**state[m.component], **m.state()}
        ids.add(load_harness(state).id)
    assert len(ids) == 3 + len(CATALOGUE) and {m.component for m in CATALOGUE} == set(h0.state())

def test_the_read_back_hook_knows_a_read_from_a_write(bench):
    from harness_s.dialect import get_dialect
    from harness_s.session import HarnessSession
    b = bench(record('UPDATE', ["UPDATE Medals SET Gold = 5 WHERE Nation = 'Cuba'"])); t = b.tasks('test')[0]
    def refused(*calls):
        env = b.env(t); s = HarnessSession(siblings()['inspect'], get_dialect('json'), t, env.tools(), 10); s.open('')
        for c in calls: s.record(c, env.call(c), 9)
        return s.admit(commit('done')) is not None
    write, read = b.oracle(t)[0], sql('SELECT * FROM Medals')
    assert refused(write) and refused(read, write) and not refused(write, read) and not refused(read) and refused(write, sql('SELEC'))

def test_diagnosis(bench):
    b = bench(record(), record('UPDATE', ["UPDATE Medals SET Gold = 5 WHERE Nation = 'Cuba'"])); read, change = b.tasks('test')
    def run(task, *calls):
        env, t = b.env(task), Trajectory('x', task.id, 'h', 0, 0, Verdict(outcome='fail'))
        t.turns = [Turn(0, 0, 0, '', [c], [env.call(c)]) for c in calls]
        return (b.diagnose(task, t) or [None])[0]
    assert run(read, commit('x')) == 'answered_unseen' and run(read, sql('SELEC')) == 'sql_error' and run(read) is None
    assert run(read, sql("SELECT * FROM Medals WHERE Gold = 77"), commit('x')) == 'empty_unfollowed' and run(read, sql('SELECT * FROM Medals'), commit('x')) == 'wrong_answer'
    assert run(read, sql('SELECT * FROM Medals'), commit('I think that the nation is the one called Peru')) == 'answer_wordy'
    assert run(change, sql('SELECT * FROM Medals'), commit('x')) == 'change_not_made' and run(change, sql('UPDATE Medals SET Gold = 9'), commit('x')) == 'write_unverified'

# ---- generated tasks ----
def test_generated_tasks_have_the_real_proportions_and_are_stable():
    a, b, c = DBBench(train=300, val=30), DBBench(train=300, val=30), DBBench(train=300, val=30, seed=1)
    assert a.tasks('train') == b.tasks('train') and not {t.content_hash for t in a.tasks('train')} & {t.content_hash for t in c.tasks('train')}
    n = Counter(t.family for t in a.tasks('train'))
    assert n['INSERT'] == n['UPDATE'] == 100 and n['counting'] == n['other'] == 17 and n['aggregation-AVG'] == 8 and len(n) == 10
    assert b.oracle(Task(id='dbbench-val-0007', split='val', instruction='')) == a.oracle(a.tasks('val')[7])       # a resumed run finds a task by its id alone
    with pytest.raises(UserError, match='no task'): a.record('dbbench-val-0030')
    starts = {t.instruction.split()[0].lower() for t in a.tasks('train')}; assert len(starts) > 12                # several phrasings

def test_generated_gold_holds_through_the_agents_own_tools():
    got = check(DBBench(train=90, val=60), ('train', 'val'))
    assert got['gold_rate'] == 100 and got['null_rate'] == 0 and got['disjoint'] and not got['failed']

@needs_data
def test_a_task_taken_from_the_test_split_is_found(monkeypatch):
    b = DBBench(DATA, train=4, val=4); assert shared_with_test(b) == []
    stolen = next(iter(b.records.values())); m = b.record('dbbench-val-0002')
    b._made[m.id] = replace(m, question=stolen.question.upper()); assert shared_with_test(b) == [m.id]
    b._made[m.id] = replace(m, table={**stolen.table, 'table': 'renamed'}); assert shared_with_test(b) == [m.id]

@needs_data
@pytest.mark.slow
def test_all_generated_tasks():
    got = DBBench(DATA).check(); full = check_dbbench(DBBench(DATA), full=True)
    assert full['played'] == 1600 + 200 + 299 and full['gold_rate'] == 100 and full['null_rate'] == 0 and full['disjoint'] and got['disjoint']

# ---- the real records ----
@needs_data
def test_the_real_records_replay():
    t = time.process_time(); got = DBBench(DATA).check()
    assert got['n'] == {'train': 1600, 'val': 200, 'test': 299} and got['shared_with_test'] == []
    assert got['insert_ok'] == 100 and got['update_ok'] >= 99 and got['null_agent_pass'] == 0
    assert time.process_time() - t < 15                                     # seconds of processor: a busy machine does not decide
    assert got['gold_rate'] == 100 and got['null_rate'] == 0 and got['disjoint'] and not got['failed'] and got['reads_ok'] == got['n_reads'] == 100
    assert list(got['excluded']) == ['dbbench-225'] and 'record 225' in got['excluded']['dbbench-225'] and got['hash_agree'] == 199
