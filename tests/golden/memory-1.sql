-- A memory of version 1, with one entry of each kind. It stays as it is; later versions have to open it.
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE users(
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE
);
CREATE TABLE entries(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL REFERENCES users(id),
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    answer TEXT NOT NULL DEFAULT '',
    role TEXT NOT NULL DEFAULT '',
    conversation TEXT NOT NULL DEFAULT '',
    seq INTEGER NOT NULL DEFAULT 0,
    at INTEGER NOT NULL,
    source TEXT NOT NULL DEFAULT '',
    key BLOB NOT NULL
);
CREATE UNIQUE INDEX entries_by_key ON entries(user, key);
CREATE INDEX entries_by_conversation ON entries(user, conversation, seq);
CREATE INDEX entries_by_age ON entries(kind, at);
CREATE TABLE gone(
    user INTEGER NOT NULL,
    key BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY(user, key)
) WITHOUT ROWID;
CREATE VIEW texts_1 AS SELECT id, text, answer FROM entries WHERE user = 1;
CREATE VIRTUAL TABLE words_1 USING fts5(
    text, answer, content='texts_1', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
INSERT INTO users VALUES(1,'7bed831a21475975357a016c1b7fb5b5');
INSERT INTO entries VALUES(1,1,'message','My bicycle is called Rosinante.','','user','00000000000000aa',0,1794814764966,'archive',X'CD63198B89CC0CC2B2064A0E868BABBC');
INSERT INTO entries VALUES(2,1,'pair','How tall is the tower?','330 metres','','',0,1794814764984,'',X'AD674ADBD5571FC117AA482C69EB2CF9');
INSERT INTO entries VALUES(3,1,'fact','colour','red','','',0,1794814764987,'',X'8DB3010D8D50199C688309708DB2B859');
INSERT INTO words_1(rowid, text, answer) SELECT id, text, answer FROM texts_1;
PRAGMA user_version = 1;
