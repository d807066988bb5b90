"""DBBench's gold on SQLite and on MariaDB, record by record.

Usage: python tests/bench/dbbench_engines.py [--data FILE] [--out agreement.csv]. Needs mariadb-server and pymysql.
Prints one JSON line last: n, reads and writes by status, how often each engine meets the published hash, seconds."""
import argparse, csv, json, os, time
from pathlib import Path
from harness_s.bench.dbbench import DBBench
from harness_s.bench.dbsql import SqliteEngine
from harness_s.bench.mariadb import agreement, compare_engines, shared_server


def main():
    here = Path(__file__).resolve().parents[2]
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--data', default=os.environ.get('HARNESS_S_DBBENCH') or str(here.parent/'shared/data/dbbench/standard.jsonl'))
    p.add_argument('--out', default=None, help='CSV with one row a record')
    a = p.parse_args()
    bench, server = DBBench(a.data), shared_server()
    t = time.perf_counter(); rows = compare_engines(bench, SqliteEngine, server.engine); seconds = time.perf_counter() - t
    if a.out:
        with open(a.out, 'w', newline='') as f:
            w = csv.writer(f); w.writerow(['record', 'kind', 'status', 'sqlite_hash', 'mariadb_hash'])
            w.writerows([r['id'], r['kind'], r['status'], r['hash_first'], r['hash_second']] for r in rows)
    got = agreement(rows)
    for i, why in got.pop('unlike').items(): print(i, why)
    print(json.dumps({**got, 'collation': server.collation, 'seconds': round(seconds, 1)}))


if __name__ == '__main__': main()
