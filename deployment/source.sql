-- Run by the source's image when its data is new, after it has made the agent's user from MARIADB_USER.
CREATE DATABASE shop;
CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, customer VARCHAR(100) NOT NULL, amount DECIMAL(10, 2) NOT NULL);
INSERT INTO shop.orders VALUES (1, 'Ada', 10.50), (2, 'Grace', 20.00);

-- The agent reads the shop and the log, and comes with TLS. It can change nothing.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO menura REQUIRE SSL;
GRANT SELECT ON shop.* TO menura;
