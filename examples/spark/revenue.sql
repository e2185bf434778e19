-- Revenue and bad bodies by day, from the typed table `orders` of a lake, in DuckDB's SQL alone:
--     reput export STORE lake --tables tables.toml
--     duckdb results.duckdb -f revenue.sql
-- Run it after each export: only days with new messages are computed again.
CREATE OR REPLACE VIEW orders AS SELECT * FROM delta_scan('lake/orders');
CREATE OR REPLACE VIEW bad_orders AS SELECT * FROM delta_scan('lake/orders.dead_letters');

CREATE TABLE IF NOT EXISTS revenue (
  day DATE PRIMARY KEY, orders BIGINT, customers BIGINT, amount DOUBLE, bad_bodies BIGINT, last_offset BIGINT
);

CREATE OR REPLACE TEMPORARY TABLE messages AS
SELECT _date AS day, _log.commitLogOffset AS place, "order", customer, amount FROM orders
UNION ALL BY NAME
SELECT _date AS day, commitLogOffset AS place FROM bad_orders;

INSERT OR REPLACE INTO revenue
SELECT
  m.day, count("order"), count(DISTINCT customer), coalesce(sum(m.amount), 0), count(*) - count("order"), max(place)
FROM messages m LEFT JOIN revenue r USING (day)
GROUP BY m.day, r.last_offset
HAVING r.last_offset IS NULL OR max(place) > r.last_offset;
