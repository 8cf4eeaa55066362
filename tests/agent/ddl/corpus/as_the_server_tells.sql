-- What a server logs although it failed, what it makes of characters that a charset lacks, and whose words a CREATE is.
CREATE TABLE parent (id INT PRIMARY KEY, note VARCHAR(20));
CREATE OR REPLACE TABLE parent (id INT, ID INT);
CREATE TABLE IF NOT EXISTS parent (id INT PRIMARY KEY, again INT);
CREATE OR REPLACE TABLE parent (id INT) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN (1));
CREATE TABLE IF NOT EXISTS parent (id INT PRIMARY KEY, once INT);
CREATE OR REPLACE TABLE parent (id INT PRIMARY KEY) SELECT 1 AS id UNION ALL SELECT 1;
CREATE TABLE IF NOT EXISTS parent (id INT PRIMARY KEY, at_last INT);
CREATE TABLE `dumped` (
  `id` INT,
  `note` text,
  `day` date
) ENGINE=InnoDB DEFAULT CHARSET=latin1;
CREATE TABLE `dumped_too` (
  `id` int(11),
  `note` varchar(20)
);
CREATE TABLE `dumped_old` (
  `id` int(11) NOT NULL,
  `note` varchar(20),
  PRIMARY KEY (`id`)
) ENGINE=MyISAM;
CREATE TABLE chosen SELECT d.id, p.at_last, 1 AS one FROM dumped d LEFT JOIN parent p ON p.id = d.id;
CREATE TABLE labels_single (a ENUM('Жук','ü','b') CHARACTER SET cp1251, b SET('é','ok') CHARACTER SET ascii, c ENUM('a@b','c') CHARACTER SET latin2);
CREATE TABLE labels_double (a ENUM('日本','é') CHARACTER SET gbk, b SET('日本','é') CHARACTER SET sjis, c ENUM('日本語','Ü') CHARACTER SET euckr, d ENUM('日本語','ü') CHARACTER SET ujis);
CREATE TABLE labels_wide (a ENUM('😀x','y') CHARACTER SET utf8mb3, b ENUM('z','😀') CHARACTER SET ucs2);
ALTER TABLE labels_single ADD d ENUM('日','b') CHARACTER SET latin1, MODIFY b SET('ß','ok') CHARACTER SET ascii;
CREATE TABLE spaces (a VARCHAR(2) NOT NULL DEFAULT 'xx   ', b VARCHAR(3) DEFAULT 'x  ', c CHAR(2) DEFAULT 'y  ');
ALTER TABLE spaces ADD d VARCHAR(1) DEFAULT 'z   ';
CREATE TABLE nulls (a INT DEFAULT (NULL), b VARCHAR(5) DEFAULT ((NULL)), c INT DEFAULT (--1), d INT DEFAULT (- 7));
CREATE TABLE columns_as_defaults (a INT NOT NULL DEFAULT 3, b INT DEFAULT columns_as_defaults.a, c INT DEFAULT t.columns_as_defaults.a, d INT DEFAULT (a));
CREATE TABLE converted (a VARCHAR(9), b TEXT) CHARACTER SET latin1;
ALTER TABLE converted CHARACTER SET latin2, CONVERT TO CHARACTER SET utf8mb3;
ALTER TABLE converted CONVERT TO CHARACTER SET latin1, DEFAULT CHARACTER SET utf8mb4;
ALTER TABLE converted CHARACTER SET DEFAULT, CONVERT TO CHARACTER SET ucs2;
ALTER TABLE converted ADD c VARCHAR(3), CONVERT TO CHARACTER SET utf8mb4;
CREATE TABLE collated (a CHAR(10) COLLATE DEFAULT, b CHAR(3) CHARACTER SET latin1 COLLATE DEFAULT) CHARACTER SET utf8mb4;
CREATE TABLE computed (a INT DEFAULT 4, b INT AS (a + 1));
ALTER TABLE computed ALTER COLUMN a DROP DEFAULT, ALTER COLUMN b DROP DEFAULT;
CREATE TABLE behind (a INT PRIMARY KEY);
CREATE TEMPORARY TABLE behind (b INT);
RENAME TABLE behind TO aside, behind TO found;
