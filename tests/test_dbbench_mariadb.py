"DBBench over a real MariaDB server: agreement with SQLite, isolation, limits. Skipped where no server is installed."
import json, os, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest
pytest.importorskip('pymysql', reason='the driver pymysql is not installed')
from harness_s.bench.base import check
from harness_s.bench.dbbench import DBBench
from harness_s.bench.dbsql import SqlLimits, SqliteEngine
from harness_s.bench.mariadb import agreement, compare_engines, find_server, start_server
from harness_s.core import UserError

pytestmark = pytest.mark.skipif(find_server() is None and not os.environ.get('HARNESS_S_MARIADB'), reason='no MariaDB server here: apt-get install mariadb-server')
T = {'table': '1st table', 'columns': ['City', 'Won %'], 'rows': [['Lima', '4'], ['Malmö', '100.5'], ['Delhi', None], ['ab', '–'], ['a b', '-']]}

@pytest.fixture(scope='module')
def server():
    s = start_server(); folder = s.folder
    yield s
    s.close(); assert not os.path.exists(folder)

@pytest.mark.parametrize('q', ['SELECT City FROM `1st table` WHERE city = "MALMO"', 'SELECT COUNT(*) FROM `1st table` WHERE `Won %` > 9', 'SELECT City FROM `1st table` ORDER BY City', 'SELECT MAX(`Won %`), MIN(`Won %`) FROM `1st table`',
                               "SELECT City FROM `1st table` WHERE City LIKE '%L%' ORDER BY `Won %` + 0", 'SELECT SUM(`Won %`), AVG(`Won %` + 0) FROM `1st table`', "SELECT CONCAT(City, '!') FROM `1st table` WHERE `Won %` IN (4, 5)", "SELECT 'it\\'s', \"x\"", 'SELECT 7 / 2',
                               "SELECT City FROM `1st table` WHERE City > 'b' ORDER BY City DESC", "SELECT SUBSTRING_INDEX(City, ' ', 1) FROM `1st table` ORDER BY 1", "SELECT LEFT(City, 2), CHAR_LENGTH(City) FROM `1st table` ORDER BY City", 'DESCRIBE `1st table`', 'SELECT nope FROM `1st table`', 'SELECT 1; SELECT 2'])
def test_the_two_engines_answer_alike(server, q):
    a, b = SqliteEngine(T).execute(q), (e := server.engine(T)).execute(q); e.close()
    assert bool(a.error) == bool(b.error), (a, b)
    want = [r[:2] for r in b.rows]
    assert a.rows == want or [tuple(map(str, r)) for r in a.rows] == [tuple(map(str, r)) for r in want], (a.rows, want)

@pytest.mark.parametrize('q', ["UPDATE `1st table` SET `Won %` = `Won %` + 1 WHERE City = 'lima'", "UPDATE `1st table` SET `Won %` = 2.50", 'UPDATE `1st table` SET City = "x\\\\y" LIMIT 2', "INSERT INTO `1st table` VALUES ('é', .5), (NULL, -3)", "DELETE FROM `1st table` WHERE `Won %` < 10", "REPLACE INTO `1st table` (City) VALUES ('z')", 'TRUNCATE TABLE `1st table`', "INSERT INTO `1st table` SELECT City, `Won %` * 2 FROM `1st table` WHERE `Won %` = 4", "UPDATE `1st table` SET City = CONCAT(City, '-', `Won %`) WHERE `Won %` IS NOT NULL"])
def test_the_two_engines_write_alike(server, q):
    a, b = SqliteEngine(T), server.engine(T)
    ra, rb = a.execute(q), b.execute(q); got, want = a.content('1st table'), b.content('1st table'); b.close()
    assert not ra.error and not rb.error and sorted(got[1], key=str) == sorted(want[1], key=str), (ra, rb)

def test_an_agent_stays_in_its_own_database(server, tmp_path):
    other, mine, f = server.engine(T), server.engine(T), tmp_path/'out'
    for q in (f'SELECT * FROM {other.db}.`1st table`', f'DROP DATABASE {other.db}', 'SELECT * FROM mysql.user', f"SELECT * INTO OUTFILE '{f}' FROM `1st table`", f"LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE `1st table`", "CREATE USER x", 'CREATE DATABASE x', 'DROP USER root@localhost', "SHOW GRANTS FOR root@localhost", 'SELECT 1; DROP TABLE `1st table`', 'SET GLOBAL max_statement_time = 0', "CREATE TRIGGER g AFTER INSERT ON `1st table` FOR EACH ROW DELETE FROM `1st table`", "CREATE FUNCTION f RETURNS STRING SONAME 'x.so'"):
        assert mine.execute(q).error, q
    assert mine.execute("SELECT LOAD_FILE('/etc/passwd')").rows == [(None,)] and not f.exists()
    assert other.db not in str(mine.execute('SHOW DATABASES').rows) and len(other.content('1st table')[1]) == 5
    other.close(); mine.close()

def test_a_lent_database_comes_back_empty(server):
    e = server.engine(T); db = e.db
    for q in ('CREATE TABLE left_over (a TEXT)', 'CREATE VIEW v AS SELECT 1', 'CREATE TEMPORARY TABLE tmp (a TEXT)', 'DROP TABLE `1st table`'): assert not e.execute(q).error
    assert e.content('1st table') is None; e.close(); e.close()
    again = server.engine(T); assert again.db == db and again.execute('SHOW TABLES').rows == [('1st table',)] and again.execute('SELECT * FROM tmp').error
    again.close()

def test_runaway_statements_end(server):
    e = server.engine({'table': 't', 'columns': ['a'], 'rows': [[str(i)] for i in range(60)]}, SqlLimits(seconds=.5, rows=50, db_bytes=3_000_000))
    for q in ('SELECT SLEEP(30)', 'SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f', 'WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c', 'SELECT BENCHMARK(900000000, MD5(1))'):
        t = time.perf_counter(); e.execute(q); assert time.perf_counter() - t < 30, q
    t = time.perf_counter(); got = e.execute('SELECT * FROM t a, t b, t c, t d'); assert len(got.rows) == 50 and got.more and time.perf_counter() - t < 30
    assert len(e.execute('SELECT * FROM t').rows) == 50
    errors = [r.error for _ in range(16) if (r := e.execute("INSERT INTO t SELECT REPEAT('x', 200) FROM t")).error]
    assert errors and len(e.content('t')[1] if e.content('t') else []) < 100_000
    e.close()

def test_threads(server):
    def one(i):
        e = server.engine(T)
        try: e.execute(f"UPDATE `1st table` SET City = 'n{i}'"); return {r[0] for r in e.content('1st table')[1]} == {f'n{i}'}
        finally: e.close()
    with ThreadPoolExecutor(4) as ex: assert all(ex.map(one, range(12)))

def test_generated_tasks_pass_on_the_server(server):
    got = check(DBBench(engine=server.engine, train=12, val=0), ('train',))
    assert got['gold_rate'] == 100 and got['null_rate'] == 0

def test_a_sample_of_the_real_records_agrees(server, dbbench_data):
    b = DBBench(dbbench_data); rows = compare_engines(b, second=server.engine, ids=list(b.records)[3::25])
    got = agreement(rows)
    assert got['writes'] == {'same': 8} and got['reads'].get('differ', 0) == 0 and got['reads'].get('only_second', 0) == 0 and got['hash_second'] == got['hash_first'] == 8

@pytest.mark.slow
def test_all_real_records_agree(server, dbbench_data):
    got = agreement(compare_engines(DBBench(dbbench_data), second=server.engine))
    assert got['n'] == 300 and got['writes'] == {'same': 200} and got['hash_first'] == got['hash_second'] == 199 and not {'differ', 'only_second'} & set(got['reads'])

@pytest.mark.slow
def test_a_dead_server_is_not_the_agents_fault():
    s = start_server(); e = s.engine(T)
    s.process.kill(); s.process.wait()
    with pytest.raises(ConnectionError): e.execute('SELECT 1')
    s.process = None; s.admin._force_close()
    import shutil; shutil.rmtree(s.folder)

def test_no_server_is_one_clear_sentence(monkeypatch):
    import harness_s.bench.mariadb as m
    monkeypatch.setattr(m, 'find_server', lambda: None)
    with pytest.raises(UserError, match='apt-get install mariadb-server'): m.start_server()
    with pytest.raises(UserError, match="engine 'oracle' is unknown"): DBBench(engine='oracle')
