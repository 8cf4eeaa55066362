-- What a session's settings change, and comments of all kinds.
SET sql_mode = 'ANSI_QUOTES';
CREATE TABLE "a" ("b c" INT, d VARCHAR(10) DEFAULT 'x', "e""f" INT, PRIMARY KEY ("b c"));
ALTER TABLE "a" ADD "g" INT, DROP "e""f";
SET sql_mode = 'ANSI';
CREATE TABLE "t"."ansi" ("a" REAL, "b" INT DEFAULT '5');
SET sql_mode = 'NO_BACKSLASH_ESCAPES';
CREATE TABLE b (a VARCHAR(10) DEFAULT 'a\', b ENUM('\', 'x\n'), c VARCHAR(10) COMMENT '\');
SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES';
CREATE TABLE "c\" (a VARCHAR(10) DEFAULT 'it''s\');
SET sql_mode = DEFAULT;
SET explicit_defaults_for_timestamp = OFF;
CREATE TABLE d (a TIMESTAMP, b TIMESTAMP, c TIMESTAMP NULL, d TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00', e INT);
SET sql_mode = '';
CREATE TABLE d2 (a TIMESTAMP, b TIMESTAMP, c TIMESTAMP NULL, e TIMESTAMP(3));
CREATE TABLE d3 (a INT, b TIMESTAMP NULL, c TIMESTAMP, d TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE d4 (a TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, b TIMESTAMP NOT NULL);
CREATE TABLE d5 (a TIMESTAMP DEFAULT CURRENT_TIMESTAMP, b TIMESTAMP DEFAULT 0);
CREATE TABLE d6 (a TIMESTAMP NOT NULL, b TIMESTAMP NOT NULL ON UPDATE NOW());
ALTER TABLE d3 ADD e TIMESTAMP, ADD f TIMESTAMP;
ALTER TABLE d3 MODIFY c TIMESTAMP NULL, MODIFY e TIMESTAMP;
ALTER TABLE d3 CHANGE f ff TIMESTAMP FIRST;
CREATE TABLE d7 (a TIMESTAMP PRIMARY KEY, b TIMESTAMP);
SET sql_mode = DEFAULT;
SET explicit_defaults_for_timestamp = ON;
CREATE TABLE e (a TIMESTAMP, b TIMESTAMP NULL, c TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP);
SET time_zone = '+05:30';
CREATE TABLE f (a TIMESTAMP NULL DEFAULT '2020-01-01 05:30:00', b DATETIME DEFAULT '2020-01-01 05:30:00');
SET time_zone = '-11:00';
ALTER TABLE f ADD c TIMESTAMP NULL DEFAULT '2019-12-31 13:00:00.4';
SET time_zone = DEFAULT;
CREATE /* a comment */ TABLE /* another */ g (a INT -- to the end
, b INT # also
, c INT /* over
lines */ );
CREATE TABLE h (a INT /*!50100 , b INT */ /*!99999 , c INT */ /*! , d INT */);
CREATE TABLE i (a INT /*!80000 , b INT */ /*!50700 , c INT */ /*!100100 , d INT */);
CREATE TABLE j (a INT /*M! , b INT */ /*M!100300 , c INT */ /*M!999999 , d INT */);
CREATE TABLE k (a INT /*!80023 INVISIBLE */, b INT) /*!50100 PARTITION BY HASH (b) PARTITIONS 2 */;
/*!40101 SET NAMES utf8mb4 */;
/*!50003 CREATE TABLE l (a INT) */;
/* leading */ ALTER TABLE l ADD b INT /* trailing */;
ALTER /*!50500 TABLE */ l /*!99998 DROP a, */ ADD /* x */ COLUMN c /*!50100 INT */ DEFAULT /*!50100 5 */;
# a comment first
ALTER TABLE l ADD d INT;
alter table l add E int;
aLtEr TaBlE l AdD cOlUmN F iNt;
ALTER TABLE l DROP COLUMN f, DROP E;
ALTER	TABLE
l
ADD
g
INT;
ALTER TABLE l ADD h INT, /*comment*/ADD i INT/**/,ADD/**/j/**/INT;
ALTER TABLE`l`ADD`k`INT;
ALTER TABLE `t`.`l` ADD `l.l` INT;
ALTER TABLE t . l ADD m INT;
ALTER TABLE .l ADD n INT;
ALTER TABLE l ADD o VARCHAR(10) DEFAULT '-- no', ADD p VARCHAR(10) DEFAULT '/* no', ADD q VARCHAR(10) DEFAULT "# no";
ALTER TABLE l ADD r INT COMMENT 'a; b', ADD s INT COMMENT "it's `x`";
ALTER TABLE l ADD `drop` INT, ADD `/* no */` INT, ADD `-- no` INT, ADD `;` INT;
ALTER TABLE l ADD t INT DEFAULT -1, ADD u INT DEFAULT -
2;
ALTER TABLE l ADD v INT DEFAULT 1 /*! NOT NULL */;
ALTER TABLE l ADD w INT /* nested /* comment */;
CREATE TABLE `select` (`select` INT);
CREATE TABLE 1a (1b INT, c INT);
CREATE TABLE `a.b` (`c.d` INT);
ALTER TABLE `a.b` ADD `e.f` INT;
CREATE TABLE `a/b` (`c\d` INT);
CREATE TABLE ünï (ä INT, Ö INT);
ALTER TABLE ünï CHANGE Ä ä2 INT, DROP ö;
CREATE TABLE `日本` (`語` INT, `ｆ` VARCHAR(5));
CREATE TABLE $dollar ($a INT, a$b INT, _ INT);
CREATE DATABASE `we``ird db`;
CREATE TABLE `we``ird db`.`ta``ble` (`co``lumn` INT, PRIMARY KEY (`co``lumn`));
ALTER TABLE `we``ird db`.`ta``ble` ADD `x y` INT;
RENAME TABLE `we``ird db`.`ta``ble` TO `we``ird db`.`b l`;
DROP DATABASE `we``ird db`;
CREATE TABLE Upper (A INT, B INT);
CREATE TABLE upper (a VARCHAR(5));
ALTER TABLE Upper DROP COLUMN a;
DROP TABLE upper;
SET STATEMENT lock_wait_timeout = 5 FOR CREATE TABLE stmt (a INT);
-- unsure mariadb: t.b, t.stmt
SET STATEMENT sql_mode = 'ANSI_QUOTES', max_statement_time = 10 FOR ALTER TABLE stmt ADD b VARCHAR(5) DEFAULT "x";
SET STATEMENT max_statement_time = 10 FOR ALTER TABLE stmt ADD c INT;
CREATE TABLE charset_intro (a VARCHAR(5) DEFAULT _latin1'x', b VARCHAR(5) DEFAULT _utf8mb4 'y', c VARBINARY(5) DEFAULT _binary'z', d VARCHAR(5) DEFAULT _utf8mb4 0x61);
SET binlog_alter_two_phase = ON;
ALTER TABLE stmt ADD two_phase INT;
ALTER TABLE charset_intro DROP a, RENAME TO intro;
SET binlog_alter_two_phase = OFF;
SET foreign_key_checks = 0;
CREATE TABLE fk_off (a INT, FOREIGN KEY (a) REFERENCES nosuch (id));
SET foreign_key_checks = 1;
SET sql_quote_show_create = 0;
CREATE TABLE unquoted SELECT 1 AS a, 'x' AS b;
SET sql_quote_show_create = 1;
SET sql_mode = 'HIGH_NOT_PRECEDENCE,PIPES_AS_CONCAT,IGNORE_SPACE,NO_DIR_IN_CREATE,PAD_CHAR_TO_FULL_LENGTH';
CREATE TABLE modes (a VARCHAR(5) DEFAULT 'x', b VARCHAR (10), c DECIMAL (5 , 2), e ENUM ( 'x' , 'y' ));
SET sql_mode = DEFAULT;
CREATE TABLE trailing_space (a INT) ;
CREATE TABLE spaces ( a   INT  ( 11 )  UNSIGNED   NOT   NULL , `b`INT );
SET STATEMENT sql_mode = 'NO_ENGINE_SUBSTITUTION' FOR CREATE TABLE for_once (a VARCHAR(20000) CHARACTER SET utf16le, b INT);
SET STATEMENT sql_mode = 'NO_ENGINE_SUBSTITUTION' FOR ALTER TABLE for_once ADD c INT, ADD UNIQUE (b);
-- unsure mariadb: t.d_or_f
SET STATEMENT sql_mode = 'REAL_AS_FLOAT' FOR CREATE TABLE d_or_f (depends REAL);
-- unsure mariadb: t.maybe_null
SET STATEMENT sql_mode = 'EMPTY_STRING_IS_NULL' FOR CREATE TABLE maybe_null (depends VARCHAR(10) DEFAULT '');
SET STATEMENT max_statement_time = 10 FOR CREATE TABLE not_modes (a REAL, b DATE, c VARCHAR(10) DEFAULT '');
SET STATEMENT sql_mode='', lock_wait_timeout = 3 FOR ALTER TABLE not_modes ADD d INT DEFAULT 4, ADD e VARCHAR(9) DEFAULT 'x';
SET sql_mode = 'ORACLE';
TRUNCATE TABLE not_modes DROP STORAGE;
TRUNCATE TABLE not_modes REUSE STORAGE;
SET sql_mode = DEFAULT;
