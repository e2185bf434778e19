-- Turnover and unpaid orders by customer, in SQL alone:
--     spark-sql --conf spark.sql.python.filterPushdown.enabled=true -d store=/path/of/the/store -f turnover.sql
CREATE TABLE IF NOT EXISTS log USING reput OPTIONS (path '${store}', columns 'topic,body,bornTimestamp');

CREATE OR REPLACE TEMPORARY VIEW orders AS
SELECT bornTimestamp AS placed, fields.*
FROM (
  SELECT bornTimestamp, from_json(CAST(body AS string), 'order bigint, customer string, amount double') AS fields
  FROM log WHERE topic = 'orders'
);

CREATE OR REPLACE TEMPORARY VIEW payments AS
SELECT from_json(CAST(body AS string), 'order bigint').order AS order, bornTimestamp AS paid
FROM log WHERE topic = 'payments';

SELECT customer, count(*) AS orders, sum(amount) AS turnover, count_if(paid IS NULL) AS unpaid
FROM orders LEFT JOIN payments USING (order)
GROUP BY customer
ORDER BY turnover DESC, customer;
